"""Report the log-probabilities of tokens in the formats of OpenAI's completions and chat completions."""

from collections.abc import Callable, Sequence
from typing import Any

from threeloops.product.request import TokenLogprobs

__all__ = ["chat_logprobs", "completion_logprobs"]

_Tokens = Sequence[tuple[int, TokenLogprobs]]
_Piece = Callable[[int], bytes]


def chat_logprobs(tokens: _Tokens, piece: _Piece) -> dict[str, Any]:
    """Return the `logprobs` object of a chat completion.

    It lists the text, bytes and log-probability of each token, and of the likeliest tokens at its position.
    """
    return {
        "content": [
            _described(piece(token), found.logprob)
            | {"top_logprobs": [_described(piece(other), logprob) for other, logprob in found.top]}
            for token, found in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: _Tokens, piece: _Piece, asked: int, start: int) -> dict[str, Any]:
    """Return the `logprobs` object of a completion: lists with one element for each token.

    `asked` is how many of the likeliest tokens the client wants. The token itself is always listed with them, as in
    the answers of OpenAI and vLLM. `start` is the number of characters before the first token.
    """
    offsets, text = [], b""
    for token, _ in tokens:
        offsets.append(start + len(text.decode(errors="ignore")))
        text += piece(token)
    return {
        "tokens": [_shown(piece(token)) for token, _ in tokens],
        "token_logprobs": [found.logprob for _, found in tokens],
        "top_logprobs": [
            {_shown(piece(other)): logprob for other, logprob in (*found.top, (token, found.logprob))}
            for token, found in tokens
        ]
        if asked
        else None,
        "text_offset": offsets,
    }


def _described(text: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _shown(text), "logprob": logprob, "bytes": list(text)}


def _shown(text: bytes) -> str:
    """Return a token as text.

    Bytes that are not UTF-8 on their own are written in OpenAI's way, such as "bytes:\\xe2". So different tokens have
    different texts.
    """
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)
