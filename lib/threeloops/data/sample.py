"""A sample as every format here stores it: a key, and its parts by extension."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """`parts` maps an extension without its dot ("jpg", "cls") to bytes; a file of it is named `key.extension`."""

    key: str
    parts: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if not self.key or "." in self.key.rpartition("/")[2]:
            raise ValueError(f"key = {self.key!r}: expected a name without a dot, which begins the extension")
        if not self.parts:
            raise ValueError(f"sample {self.key!r} has no parts")

    def files(self) -> list[tuple[str, bytes]]:
        """(name, contents) of each part, in order."""
        return [(f"{self.key}.{extension}", bytes(data)) for extension, data in self.parts.items()]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


def split_name(name: str) -> tuple[str, str]:
    """`("photos/0001", "seg.png")` of "photos/0001.seg.png": the key ends at the first dot behind the last slash."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return folder + slash + stem, extension
