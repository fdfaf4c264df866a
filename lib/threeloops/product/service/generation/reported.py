"""Report the log-probabilities of tokens in the formats of OpenAI's completions and chat completions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from threeloops.product.request import TokenLogprobs
from threeloops.product.text import Tokenizer

__all__ = ["Reported", "chat_logprobs", "completion_logprobs"]


class Reported(NamedTuple):
    """A token of an answer. `place` is the number of characters in the text before those of the token."""

    token: int
    logprobs: TokenLogprobs
    place: int


def chat_logprobs(tokens: Sequence[Reported], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the `logprobs` object of a chat completion.

    It lists the text, bytes and log-probability of each token, and of the likeliest tokens at its position.
    """
    return {
        "content": [
            _described(tokenizer, token, found.logprob)
            | {"top_logprobs": [_described(tokenizer, other, logprob) for other, logprob in found.top]}
            for token, found, _ in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[Reported], tokenizer: Tokenizer, asked: int) -> dict[str, Any]:
    """Return the `logprobs` object of a completion: lists with one element for each token.

    `asked` is how many of the likeliest tokens the client wants. The token itself is always listed with them, as in
    the answers of OpenAI and vLLM.
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
    """Describe a token. Its bytes are those that it adds to the text; a special token adds none."""
    return {"token": _shown(tokenizer, token), "logprob": logprob, "bytes": list(tokenizer.piece(token))}


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """Return a token as text.

    Bytes that are not UTF-8 on their own are written in OpenAI's way, such as "bytes:\\xe2". A special token is its own
    text, and an unknown one is its number. So different tokens have different texts.
    """
    if not (text := tokenizer.piece(token)):
        return tokenizer.special(token) or f"token_id:{token}"
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)
