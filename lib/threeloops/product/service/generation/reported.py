"""How likely tokens were, as OpenAI's two kinds of answers say it."""

from collections.abc import Callable, Sequence
from typing import Any

from threeloops.product.request import TokenLogprobs

__all__ = ["chat_logprobs", "completion_logprobs"]

_Tokens = Sequence[tuple[int, TokenLogprobs]]
_Piece = Callable[[int], bytes]


def chat_logprobs(tokens: _Tokens, piece: _Piece) -> dict[str, Any]:
    """Of a chat completion: for each token its bytes, its log-probability, and those of the likeliest."""
    return {
        "content": [
            _described(piece(token), found.logprob)
            | {"top_logprobs": [_described(piece(other), logprob) for other, logprob in found.top]}
            for token, found in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: _Tokens, piece: _Piece, asked: int, start: int) -> dict[str, Any]:
    """Of a completion: lists with a place for each token. `start` is how many characters were before the first.

    The token itself is among the likeliest, also if it is none of the `asked` (OpenAI's and vLLM's do so too).
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
    """The text of a token; bytes that are none alone as OpenAI shows them, so that two of them differ."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)
