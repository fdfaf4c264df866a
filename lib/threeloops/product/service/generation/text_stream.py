"""From tokens to the text that a client may see by now, and its framing as server-sent events.

A character may be incomplete, and a stop string may be half here. Neither is sent before it is certain: what was sent
cannot be taken back.
"""

from collections.abc import Sequence

from threeloops.product.text import TextDecoder

__all__ = ["DONE", "TextStream", "event"]

DONE = b"data: [DONE]\n\n"
"""The last event of a stream that has told everything."""


def event(data: bytes) -> bytes:
    """A server-sent event. `data` is JSON, which has no line breaks."""
    return b"data: " + data + b"\n\n"


class TextStream:
    """Tokens in, text out, up to the first stop string.

    The stop string that is complete first ends the text, in front of it; of those that are complete with the same
    character, the longest. How the text was cut into tokens makes no difference.
    """

    def __init__(self, decoder: TextDecoder, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise ValueError("a stop string is empty: expected at least one character, or no stop string")
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._decoder = decoder
        self._held = ""
        self.stopped = False
        """Whether a stop string has ended the text: no more tokens are needed."""

    def push(self, tokens: Sequence[int], *, may_stop: bool = True) -> str:
        """The text that is certain now and was not before; often none. `may_stop`: whether a stop string may begin in
        it."""
        return self._take(self._decoder.push(tokens), may_stop)

    def place(self, token: int) -> int:
        """How many characters of the text, those that are held back included, are before `token`, which comes next."""
        return self._decoder.place(token)

    def end(self) -> str:
        """No more tokens will come: what was held back, an incomplete character as a replacement character."""
        text = self._take(self._decoder.end())
        rest, self._held = self._held, ""
        return text if self.stopped else text + rest

    def _take(self, text: str, may_stop: bool = True) -> str:
        if self.stopped or not text:
            return ""
        self._held += text
        if not self._stop or not may_stop:
            given, self._held = self._held, ""
            return given
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            given, self._held = self._held[: min(found)[1]], ""
            return given
        keep = self._may_become_a_stop()
        given, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return given

    def _may_become_a_stop(self) -> int:
        """Characters at the end that begin a stop string; the longest such end."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0
