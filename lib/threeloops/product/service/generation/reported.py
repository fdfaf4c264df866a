"""Report the log-probabilities of tokens in the formats of OpenAI's completions and chat completions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from threeloops.product.request import TokenLogprobs
from threeloops.product.text import Tokenizer

__all__ = ["HeldReports", "Reported", "chat_logprobs", "completion_logprobs", "prompt_reports"]


class Reported(NamedTuple):
    """A token of an answer. `place` is the number of characters in the text before those of the token.

    `logprobs` is None for the first token of a prompt, because nothing comes before it.
    """

    token: int
    logprobs: TokenLogprobs | None
    place: int


class HeldReports:
    """Holds reports back until the first character of their token is sent.

    Otherwise, when a stop string is cut off, a report could remain whose place is beyond the end of the text.
    """

    def __init__(self, sent: int) -> None:
        """Begin after `sent` characters of the answer, such as those of an echoed prompt."""
        self._sent = sent
        self._held: list[Reported] = []

    def push(self, report: Reported, text: str) -> tuple[Reported, ...]:
        """Add the report of a token and the text that is sent now. Return the reports to send with that text."""
        self._held.append(report)
        self._sent += len(text)
        count = next((at for at, held in enumerate(self._held) if held.place >= self._sent), len(self._held))
        ready = self._held[:count]
        self._held = self._held[count:]
        return tuple(ready)

    def end(self, text: str) -> tuple[Reported, ...]:
        """End the answer with `text`, and return the remaining reports. Tokens that were cut off are put at its end."""
        end = self._sent + len(text)
        return tuple(report._replace(place=min(report.place, end)) for report in self._held)


def prompt_reports(
    tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], text: str, tokenizer: Tokenizer
) -> tuple[Reported, ...]:
    """Return the reports of the tokens of a prompt, whose `text` was sent. `logprobs` begin with the second token.

    A special token that is written in the text has its own place. One that the tokenizer has added takes up no
    characters. If the tokenizer changes the text before it encodes it, places refer to the changed text.
    """
    decoder = tokenizer.decoder()
    names = 0
    reports = []
    for token, token_logprobs in zip(tokens, (None, *logprobs), strict=True):
        place = min(decoder.place(token) + names, len(text))
        reports.append(Reported(token, token_logprobs, place))
        decoder.push((token,))
        if (name := tokenizer.special(token)) and text.startswith(name, place):
            names += len(name)
    return tuple(reports)


def chat_logprobs(tokens: Sequence[Reported], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the `logprobs` object of a chat completion.

    It lists the text, bytes and log-probability of each token, and of the likeliest tokens at its position.
    """
    return {
        "content": [
            _described(tokenizer, token, logprobs.logprob)
            | {"top_logprobs": [_described(tokenizer, other, logprob) for other, logprob in logprobs.top]}
            for token, logprobs, _ in tokens
            if logprobs is not None
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
        "token_logprobs": [None if logprobs is None else logprobs.logprob for _, logprobs, _ in tokens],
        "top_logprobs": [
            None
            if logprobs is None
            else {_shown(tokenizer, other): logprob for other, logprob in (*logprobs.top, (token, logprobs.logprob))}
            for token, logprobs, _ in tokens
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
