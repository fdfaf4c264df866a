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
        self._piece = piece
        self._first = first
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._characters = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Add tokens, and return the characters that they complete."""
        text = self._decoder.decode(b"".join(map(self._bytes, tokens)))
        self._characters += len(text)
        return text

    def place(self, token: int) -> int:
        """Return the number of characters before those of `token`, which comes next.

        A character that the token only completes counts as its own.
        """
        held, _ = self._decoder.getstate()
        try:
            codecs.getincrementaldecoder("utf-8")().decode(held + self._piece(token)[:1])
        except UnicodeDecodeError:
            return self._characters + bool(held)  # what is held becomes a replacement character
        return self._characters

    def end(self) -> str:
        """Return a replacement character if the text ends with an incomplete character, and otherwise nothing."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        data = self._piece(token)
        if data and self._first is not None:
            data = self._first(token)
            self._first = None
        return data
