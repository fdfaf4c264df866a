"""Work out which bytes each token adds to a text, from the decoder that `tokenizer.json` describes.

`tokenizers` decodes a whole list of tokens. A stream needs the bytes of each single token, so that it can hold back a
character until it is complete and never has to change text that it has sent. The decoders of Llama, Mistral and Qwen
work token by token, except for one space at the beginning of a text.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from threeloops.product.tokenizer_files import byte_characters

__all__ = ["Pieces"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KNOWN = "ByteLevel, Metaspace, ByteFallback, Fuse, Replace with a string, or Strip of one leading space"


class Pieces:
    """The bytes of every token.

    If the byte tokens of a byte fallback do not form UTF-8, only the invalid bytes become replacement characters.
    `tokenizers` also replaces the complete characters around them.
    """

    def __init__(
        self, text_of: Callable[[int], str | None], skipped: frozenset[int], decoder: Mapping[str, Any]
    ) -> None:
        """Follow the decoder described by `decoder`. Raises ValueError if it does not work token by token.

        `text_of` returns a token as it stands in the vocabulary. `skipped` are special tokens, which add no text.
        """
        self._text_of = text_of
        self._skipped = skipped
        self._known: dict[int, bytes] = {}
        self._steps: list[Callable[[str | bytes], str | bytes]] = []
        self._space = ""
        """The character that stands for a space. It is dropped from the first token of a text; "" drops nothing."""
        self._strips = False
        parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
        for part in parts:
            self._add(part)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token within a text."""
        if (piece := self._known.get(token)) is None:
            text = None if token in self._skipped else self._text_of(token)
            piece = self._known[token] = b"" if text is None else self._decoded(text)
        return piece

    def first(self, token: int) -> bytes:
        """Return the bytes of a token at the beginning of a text."""
        text = self._text_of(token) or ""
        data = self._decoded(text.replace(self._space, "")) if self._space else self.piece(token)
        return data.removeprefix(b" ") if self._strips else data

    def _decoded(self, text: str) -> bytes:
        value: str | bytes = text
        for step in self._steps:
            value = step(value)
        return value.encode() if isinstance(value, str) else value

    def _add(self, part: Mapping[str, Any]) -> None:
        kind = part.get("type")
        if kind == "ByteLevel":
            self._steps.append(_of_byte_level)
        elif kind == "ByteFallback":
            self._steps.append(_of_byte_fallback)
        elif kind == "Replace" and "String" in part["pattern"]:
            self._steps.append(_replacing(part["pattern"]["String"], part["content"]))
        elif kind == "Metaspace":
            self._steps.append(_replacing(part["replacement"], " "))
            never = part.get("prepend_scheme", "always") == "never" or part.get("add_prefix_space") is False
            self._space = "" if never else part["replacement"]
        elif kind == "Strip" and (part["content"], part["start"], part["stop"]) == (" ", 1, 0):
            self._strips = True
        elif kind != "Fuse":
            raise ValueError(
                f"the decoder contains {dict(part)}, which may not decode token by token: expected only {_KNOWN}; "
                "serve a model with such a tokenizer"
            )


def _replacing(old: str, new: str) -> Callable[[str | bytes], str | bytes]:
    return lambda text: text.replace(old, new) if isinstance(text, str) else text


def _of_byte_fallback(text: str | bytes) -> str | bytes:
    """Turn a token such as "<0xE4>" into the byte E4, and leave other tokens as they are."""
    match = _BYTE.fullmatch(text) if isinstance(text, str) else None
    return bytes((int(match[1], 16),)) if match else text


_BYTES = byte_characters()


def _of_byte_level(text: str | bytes) -> str | bytes:
    """Turn the characters of a byte-level token into bytes. An added token with other characters stays as it is."""
    if isinstance(text, str) and all(character in _BYTES for character in text):
        return bytes(_BYTES[character] for character in text)
    return text
