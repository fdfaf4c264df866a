"""How likely tokens were, as OpenAI's two kinds of answers say it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from threeloops.product.request import TokenLogprobs
from threeloops.product.text import Tokenizer

__all__ = ["Reported", "chat_logprobs", "completion_logprobs"]


class Reported(NamedTuple):
    """A token of an answer, before whose own characters the text has `place` others."""

    token: int
    logprobs: TokenLogprobs
    place: int


def chat_logprobs(tokens: Sequence[Reported], tokenizer: Tokenizer) -> dict[str, Any]:
    """Of a chat completion: for each token its bytes, its log-probability, and those of the likeliest."""
    return {
        "content": [
            _described(tokenizer, token, found.logprob)
            | {"top_logprobs": [_described(tokenizer, other, logprob) for other, logprob in found.top]}
            for token, found, _ in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[Reported], tokenizer: Tokenizer, asked: int) -> dict[str, Any]:
    """Of a completion: lists with a place for each token.

    The token itself is among the likeliest, also if it is none of the `asked` (OpenAI's and vLLM's do so too).
    """
    return {
        "tokens": [_shown(tokenizer, token) for token, _, _ in tokens],
        "token_logprobs": [found.logprob for _, found, _ in tokens],
        "top_logprobs": [
            {_shown(tokenizer, other): logprob for other, logprob in (*found.top, (token, found.logprob))}
            for token, found, _ in tokens
        ]
        if asked
        else None,
        "text_offset": [place for _, _, place in tokens],
    }


def _described(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    """The bytes are those that it adds to the text: none of a special token."""
    return {"token": _shown(tokenizer, token), "logprob": logprob, "bytes": list(tokenizer.piece(token))}


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token. Bytes that are none alone are as OpenAI shows them, and a token without any text is its
    number, so that two of them differ."""
    if not (text := tokenizer.piece(token)):
        return tokenizer.special(token) or f"token_id:{token}"
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)
