"""The bytes that each token of a `tokenizer.json` adds to a text, by the decoder that the file describes.

`tokenizers` decodes a whole list of tokens. A stream needs more: which bytes one token adds, so that a character can be
held back until it is complete, and nothing that was sent changes later. The decoders of Llama, Mistral and Qwen work
token by token, except for one space at the beginning of a text.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Pieces"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KNOWN = "ByteLevel, Metaspace, Replace, ByteFallback, Fuse or Strip"


class Pieces:
    """Bytes by token. Two tokens of a byte fallback that are not UTF-8 together are decoded as any such bytes are;
    `tokenizers` also replaces the complete characters around them.

    Raises ValueError for a decoder that does not work token by token.
    """

    def __init__(
        self, text_of: Callable[[int], str | None], skipped: frozenset[int], decoder: Mapping[str, Any]
    ) -> None:
        """`text_of` gives a token as it stands in the vocabulary; `skipped` are special tokens, which add no text."""
        self._text_of, self._skipped = text_of, skipped
        self._known: dict[int, bytes] = {}
        self._steps: list[Callable[[str | bytes], str | bytes]] = []
        self._space = ""
        """What stands for a space in the first token of a text and is dropped there."""
        self._strips = False
        parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
        for part in parts:
            self._add(part)

    def piece(self, token: int) -> bytes:
        """The bytes of a token within a text."""
        if (known := self._known.get(token)) is None:
            text = None if token in self._skipped else self._text_of(token)
            known = self._known[token] = b"" if text is None else self._decoded(text)
        return known

    def first(self, token: int) -> bytes:
        """The bytes of a token at the beginning of a text."""
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
            raise ValueError(f"its decoder has a part {dict(part)}: expected {_KNOWN}, which decode token by token")


def _replacing(old: str, new: str) -> Callable[[str | bytes], str | bytes]:
    return lambda text: text.replace(old, new) if isinstance(text, str) else text


def _of_byte_fallback(text: str | bytes) -> str | bytes:
    """ "<0xE4>" is the byte E4."""
    found = _BYTE.fullmatch(text) if isinstance(text, str) else None
    return bytes((int(found[1], 16),)) if found else text


def _byte_characters() -> dict[str, int]:
    """The character for each byte in a byte-level vocabulary: itself if it can be printed, else one from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _byte_characters()


def _of_byte_level(text: str | bytes) -> str | bytes:
    """Its bytes, if every character stands for one. Added tokens may hold others, and are text as they stand."""
    if isinstance(text, str) and all(character in _BYTES for character in text):
        return bytes(_BYTES[character] for character in text)
    return text
