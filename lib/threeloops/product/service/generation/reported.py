"""How likely tokens were, as OpenAI's two kinds of answers say it."""

from collections.abc import Callable, Sequence
from typing import Any

from threeloops.product.request import TokenLogprobs

__all__ = ["chat_logprobs", "completion_logprobs"]

_Tokens = Sequence[tuple[int, TokenLogprobs]]
_Piece = Callable[[int], bytes]
"""Gives the bytes that a token adds to a text."""


def chat_logprobs(tokens: _Tokens, piece: _Piece) -> dict[str, Any]:
    """Of a chat completion: for each token its bytes, its log-probability, and those of the likeliest."""
    return {
        "content": [
            _described(token, found.logprob, piece)
            | {"top_logprobs": [_described(other, logprob, piece) for other, logprob in found.top]}
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
        "tokens": [_shown(token, piece) for token, _ in tokens],
        "token_logprobs": [found.logprob for _, found in tokens],
        "top_logprobs": [
            {_shown(other, piece): logprob for other, logprob in (*found.top, (token, found.logprob))}
            for token, found in tokens
        ]
        if asked
        else None,
        "text_offset": offsets,
    }


def _described(token: int, logprob: float, piece: _Piece) -> dict[str, Any]:
    return {"token": _shown(token, piece), "logprob": logprob, "bytes": list(piece(token))}


def _shown(token: int, piece: _Piece) -> str:
    """Its text. Part of a character is shown as OpenAI does, and a special token by its number as vLLM can do, so that
    two of them differ."""
    if not (data := piece(token)):
        return f"token_id:{token}"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
