"""Decompression of gzip shards. Other compressions raise an error that names them.

Images, sound and compressed text do not shrink further, and a compressed shard cannot be read from the middle. But many
shards on the web end in .tar.gz.
"""

import gzip
import re
import zlib
from typing import Any, BinaryIO, cast

from threeloops.data.errors import CorruptData

__all__ = ["uncompressed"]

_GZIP = b"\x1f\x8b"
_OTHERS = {
    rb"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    rb"BZh[1-9]1A": ("bzip2", "bunzip2"),  # with the first bytes of a block, because a tar may begin with a name BZh…
    rb"\xfd7zXZ\0": ("xz", "unxz"),
    rb"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
    rb"PK\x03\x04": ("zip", "unzip, and tar"),
}
"""The name of each format and the command that decompresses it, by a pattern of its first bytes."""
_LONGEST = 6


def uncompressed(file: BinaryIO, shard: str) -> BinaryIO:
    """Return a stream with the same bytes, decompressed if they are in gzip's format.

    Raises CorruptData if the file has another compression.
    """
    head = b""
    while len(head) < _LONGEST and (more := file.read(_LONGEST - len(head))):
        head += more
    whole = cast(BinaryIO, _Continued(head, file))
    if head.startswith(_GZIP):
        return cast(BinaryIO, _Gunzipped(whole, shard))
    for magic, (name, command) in _OTHERS.items():
        if re.match(magic, head):
            raise CorruptData(
                shard, "byte 0", f"compressed with {name}, expected gzip or none: decompress the shard with {command}"
            )
    return whole


class _Continued:
    """A stream that puts bytes which were read already before the rest of a file."""

    def __init__(self, head: bytes, file: BinaryIO) -> None:
        self._head, self._file = head, file

    def read(self, size: int) -> bytes:
        if not self._head:
            return self._file.read(size)
        head, self._head = self._head[:size], self._head[size:]
        return head + self._file.read(size - len(head)) if size > len(head) else head


class _Gunzipped:
    """A stream that decompresses a gzip file."""

    def __init__(self, file: BinaryIO, shard: str) -> None:
        self._file: Any = gzip.GzipFile(fileobj=file, mode="rb")
        self._shard, self._read = shard, 0

    def read(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            place = f"byte {self._read:,} of the decompressed data"
            raise CorruptData(self._shard, place, f"{error}: the shard is cut short or damaged") from None
        self._read += len(data)
        return data
