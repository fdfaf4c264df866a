"""Decompression of gzip shards. Other compressions raise an error that names them.

Compressing a shard gains little, because images, sound and compressed text do not shrink further, and a compressed
shard cannot be read from the middle. But many shards on the web end in .tar.gz, so this module reads them.
"""

import gzip
import re
import tempfile
import zlib
from typing import Any, BinaryIO, cast

from threeloops.data.errors import CorruptData

__all__ = ["require_uncompressed", "uncompressed"]

_FORMATS = {
    rb"\x1f\x8b": ("gzip", "gunzip"),
    rb"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    rb"BZh[1-9]1A": ("bzip2", "bunzip2"),  # with the first bytes of a block, because a tar may begin with a name BZh…
    rb"\xfd7zXZ\0": ("xz", "unxz"),
    rb"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
    rb"PK\x03\x04": ("zip", "unzip, and tar"),
}
"""The name of each format and the command that decompresses it, by a pattern of its first bytes."""
_LONGEST = 6
_IN_MEMORY = 1 << 26
"""Bytes up to which a copy of a shard stays in memory."""


def uncompressed(file: BinaryIO, shard: str) -> BinaryIO:
    """Return a file that can seek and has the same bytes, decompressed if they are in gzip's format.

    This is `file` itself if it can seek and is not compressed. Otherwise it is a temporary file, in memory if it is
    small. Raises CorruptData if the file has another compression.
    """
    begin = file.tell() if _can_seek(file) else None
    head = _head(file)
    name, command = _compression(head)
    if name == "gzip":
        return _copied(cast(BinaryIO, _Gunzipped(cast(BinaryIO, _Continued(head, file)), shard)))
    if name:
        raise _refused(shard, name, "gzip or none", command)
    if begin is None:
        return _copied(cast(BinaryIO, _Continued(head, file)))
    file.seek(begin)
    return file


def require_uncompressed(file: BinaryIO, shard: str) -> None:
    """Raise CorruptData if a file that can seek is compressed: no sample can be read from the middle of it."""
    begin = file.tell()
    name, command = _compression(_head(file))
    if name:
        raise _refused(shard, name, "none", command)
    file.seek(begin)


def _compression(head: bytes) -> tuple[str, str]:
    """Return the name of the format that begins with `head` and the command to decompress it, or two empty texts."""
    return next((format for magic, format in _FORMATS.items() if re.match(magic, head)), ("", ""))


def _refused(shard: str, name: str, expected: str, command: str) -> CorruptData:
    wrong = f"compressed with {name}, expected {expected}: decompress the shard with {command}"
    return CorruptData(shard, "byte 0", wrong)


def _head(file: BinaryIO) -> bytes:
    head = b""
    while len(head) < _LONGEST and (more := file.read(_LONGEST - len(head))):
        head += more
    return head


def _can_seek(file: BinaryIO) -> bool:
    return hasattr(file, "seekable") and file.seekable()


def _copied(stream: BinaryIO) -> BinaryIO:
    copy = cast(BinaryIO, tempfile.SpooledTemporaryFile(_IN_MEMORY))  # noqa: SIM115
    while piece := stream.read(1 << 20):
        copy.write(piece)
    copy.seek(0)
    return copy


class _Continued:
    """A stream that puts bytes which were read already before the rest of a file."""

    def __init__(self, head: bytes, file: BinaryIO) -> None:
        self._head = head
        self._file = file

    def read(self, size: int) -> bytes:
        if not self._head:
            return self._file.read(size)
        head = self._head[:size]
        self._head = self._head[size:]
        return head + self._file.read(size - len(head)) if size > len(head) else head


class _Gunzipped:
    """A stream that decompresses a gzip file."""

    def __init__(self, file: BinaryIO, shard: str) -> None:
        self._file: Any = gzip.GzipFile(fileobj=file, mode="rb")
        self._shard = shard
        self._read = 0

    def read(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            place = f"byte {self._read:,} of the decompressed data"
            raise CorruptData(self._shard, place, f"{error}: the shard is cut short or damaged") from None
        self._read += len(data)
        return data
