"""Turn tokens into text that is safe to send, and write server-sent events.

Text that was sent cannot be taken back. So an incomplete character is held back, and so is text that may turn out to be
the beginning of a stop string.
"""

from collections.abc import Sequence

from threeloops.product.text import TextDecoder

__all__ = ["DONE", "TextStream", "event"]

DONE = b"data: [DONE]\n\n"
"""The last event of a complete stream."""


def event(data: bytes) -> bytes:
    """Return a server-sent event. `data` must be JSON on one line."""
    return b"data: " + data + b"\n\n"


class TextStream:
    """Turns tokens into text, up to the first stop string.

    The text ends before the stop string that is completed first. If the same character completes several, it ends
    before the longest of them. The result does not depend on how the text was divided into tokens.
    """

    def __init__(self, decoder: TextDecoder, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise ValueError("a stop string is empty: expected at least one character, or no stop string")
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._decoder = decoder
        self._held = ""
        self.stopped = False
        """Whether a stop string has ended the text, so that no more tokens are needed."""

    def push(self, tokens: Sequence[int], *, may_stop: bool = True) -> str:
        """Add tokens, and return the text that is now safe to send, which is often empty.

        If `may_stop` is false, stop strings are not looked for, and no text is held back for them.
        """
        return self._take(self._decoder.push(tokens), may_stop)

    def place(self, token: int) -> int:
        """Return the number of characters before those of `token`, which comes next. Text that is held back counts."""
        return self._decoder.place(token)

    def end(self) -> str:
        """End the text, and return the text that was held back.

        An incomplete character becomes a replacement character.
        """
        text = self._take(self._decoder.end())
        rest = self._held
        self._held = ""
        return text if self.stopped else text + rest

    def _take(self, text: str, may_stop: bool = True) -> str:
        if self.stopped or not text:
            return ""
        self._held += text
        if not self._stop or not may_stop:
            given = self._held
            self._held = ""
            return given
        stops = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if stops:
            self.stopped = True
            given = self._held[: min(stops)[1]]
            self._held = ""
            return given
        keep = self._may_become_a_stop()
        given = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return given

    def _may_become_a_stop(self) -> int:
        """Return how many characters at the end of the held text may be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0
