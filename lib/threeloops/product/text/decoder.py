"""Tokens in, text out: only characters that are complete."""

import codecs
from collections.abc import Callable, Sequence

__all__ = ["TextDecoder"]


class TextDecoder:
    """Decodes a text while its tokens arrive. A character whose last byte is still to come is held back.

    Bytes that are not UTF-8 become replacement characters, as `bytes.decode(errors="replace")` makes them.
    """

    def __init__(self, piece: Callable[[int], bytes], first: Callable[[int], bytes] | None = None) -> None:
        """`piece` gives the bytes of a token; `first`, if given, those of the first token that has any."""
        self._piece, self._first = piece, first
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._characters = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Take tokens, and return the characters that are complete now."""
        text = self._decoder.decode(b"".join(map(self._bytes, tokens)))
        self._characters += len(text)
        return text

    def place(self, token: int) -> int:
        """Return how many characters are before those of `token`, which comes next. A character that it only completes
        is its own."""
        held, _ = self._decoder.getstate()
        try:
            codecs.getincrementaldecoder("utf-8")().decode(held + self._piece(token)[:1])
        except UnicodeDecodeError:
            return self._characters + bool(held)  # nothing completes what was held back
        return self._characters

    def end(self) -> str:
        """Return what was held back: an incomplete character as a replacement character."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        data = self._piece(token)
        if data and self._first is not None:
            data, self._first = self._first(token), None
        return data
