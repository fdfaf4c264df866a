"""How likely tokens were, as OpenAI's two kinds of answers say it."""

from collections.abc import Sequence
from typing import Any

from threeloops.product.request import TokenLogprobs

__all__ = ["chat_logprobs", "completion_logprobs"]

_Tokens = Sequence[tuple[int, TokenLogprobs]]


def chat_logprobs(tokens: _Tokens) -> dict[str, Any]:
    """Of a chat completion: for each token its bytes, its log-probability, and those of the likeliest."""
    return {
        "content": [
            _described(token, found.logprob)
            | {"top_logprobs": [_described(other, logprob) for other, logprob in found.top]}
            for token, found in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: _Tokens, asked: int, start: int) -> dict[str, Any]:
    """Of a completion: lists with a place for each token. `start` is how many characters were before the first.

    The token itself is among the likeliest, also if it is none of the `asked` (OpenAI's and vLLM's do so too).
    """
    offsets, text = [], b""
    for token, _ in tokens:
        offsets.append(start + len(text.decode(errors="ignore")))
        text += _bytes(token)
    return {
        "tokens": [_shown(token) for token, _ in tokens],
        "token_logprobs": [found.logprob for _, found in tokens],
        "top_logprobs": [
            {_shown(other): logprob for other, logprob in (*found.top, (token, found.logprob))}
            for token, found in tokens
        ]
        if asked
        else None,
        "text_offset": offsets,
    }


def _described(token: int, logprob: float) -> dict[str, Any]:
    return {"token": _shown(token), "logprob": logprob, "bytes": list(_bytes(token))}


def _bytes(token: int) -> bytes:
    return bytes([token])


def _shown(token: int) -> str:
    """Its text; bytes that are none alone as OpenAI shows them, so that two of them differ."""
    try:
        return _bytes(token).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in _bytes(token))
