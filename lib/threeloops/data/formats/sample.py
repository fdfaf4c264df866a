"""A sample as every format here stores it: a key, and its parts by extension."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Sample", "split_name", "unrepeated"]


@dataclass(frozen=True)
class Sample:
    """`parts` maps an extension without its dot ("jpg", "cls") to bytes; its file is named `key.extension`.

    Every format reads a sample back under the key and extensions under which it was written. Raises ValueError for
    names that would not survive, TypeError for a part that is neither bytes nor another buffer.
    """

    key: str
    parts: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if not self.key or "." in self.key.rpartition("/")[2]:
            raise ValueError(f"key = {self.key!r}: expected a name without a dot, which begins the extension")
        if self.key.startswith("/") or self.key.endswith("/") or ".." in self.key.split("/") or "\0" in self.key:
            raise ValueError(f"key = {self.key!r}: expected a name below the folder, as 'train/0001'")
        if not self.parts:
            raise ValueError(f"sample {self.key!r} has no parts")
        for extension, data in self.parts.items():
            if not isinstance(extension, str) or "/" in extension or "\0" in extension:
                raise ValueError(f"sample {self.key!r}: extension {extension!r}, expected a text without '/', as 'cls'")
            try:
                memoryview(data)
            except TypeError:
                wrong = f"part {extension!r} of sample {self.key!r} is {type(data).__name__}"
                raise TypeError(f"{wrong}: expected bytes; encode it first, a number as str(7).encode()") from None

    def files(self) -> list[tuple[str, bytes]]:
        """(name, contents) of each part, in order."""
        return [(f"{self.key}.{extension}", bytes(data)) for extension, data in self.parts.items()]


def unrepeated(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The samples as they come. Raises ValueError for a repeated key, whose samples would be merged on reading."""
    seen: set[str] = set()
    for number, sample in enumerate(samples):
        if sample.key in seen:
            raise ValueError(f"sample {number}: key {sample.key!r} was already written; expected a key of its own")
        seen.add(sample.key)
        yield sample


def split_name(name: str) -> tuple[str, str]:
    """ "photos/0001.seg.png" → ("photos/0001", "seg.png"): the key ends at the first dot after the last slash."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return folder + slash + stem, extension
