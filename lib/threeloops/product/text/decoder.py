"""Decode tokens into text as they arrive, one complete character at a time."""

import codecs
from collections.abc import Callable, Sequence

__all__ = ["TextDecoder"]


class TextDecoder:
    """Decodes a text while its tokens arrive. An incomplete character is held back until its last byte has come.

    Bytes that are not UTF-8 become replacement characters, as with `bytes.decode(errors="replace")`.
    """

    def __init__(self, piece: Callable[[int], bytes], first: Callable[[int], bytes] | None = None) -> None:
        """Start a text. `piece` returns the bytes of a token.

        `first`, if given, is called instead of `piece` for the first token that has any bytes.
        """
        self._piece, self._first = piece, first
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, tokens: Sequence[int]) -> str:
        """Add tokens, and return the characters that they complete."""
        return self._decoder.decode(b"".join(map(self._bytes, tokens)))

    def end(self) -> str:
        """Return a replacement character if the text ends with an incomplete character, and otherwise nothing."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        data = self._piece(token)
        if data and self._first is not None:
            data, self._first = self._first(token), None
        return data
