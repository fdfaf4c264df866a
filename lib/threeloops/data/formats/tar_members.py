"""The tar format: a chain of members, each a header of 512 bytes, its contents, and zeros up to the next 512.

Two blocks of zeros end the chain. Everything after a wrong size is lost. Sources: POSIX.1-1988 (ustar), POSIX.1-2001
(pax, whose records may replace a name or a size), and the GNU tar manual, "Basic Tar Format" (a name of more than 100
bytes is the contents of a member of type L in front of its file) and "Extensions" (sizes from 8 GiB on).
"""

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from threeloops.data.errors import CorruptData

__all__ = ["BLOCK", "Member", "header", "list_members"]

BLOCK = 512
_NAME, _SIZE, _CHECKSUM, _TYPE, _MAGIC = slice(0, 100), slice(124, 136), slice(148, 156), 156, slice(257, 265)
_PREFIX = slice(345, 500)
_USTAR = b"ustar\x0000"
_FILES = ("\0", "0")
_FOLDER = "5"
_PAX = "x"
_PAX_OF_ALL = "g"
_LONG_NAME = "L"
_SPARSE = "GNU.sparse."
_BINARY = b"\x80"
"""The first byte of a number that is binary, which GNU tar writes where octal digits have no room."""


class Member(NamedTuple):
    """A regular file in a shard, and its position."""

    name: str
    offset: int
    """The offset of its first header, in bytes from the start of the shard."""
    begin: int
    """The position of its contents in the file that was listed."""
    size: int


def header(name: str, size: int) -> bytes:
    """The 512 bytes before a member. Time and owner are zero, so that equal samples make equal shards.

    The checksum is the sum of all bytes of the header, with spaces in place of its own eight.
    """
    encoded = name.encode(errors="surrogateescape")
    if not 0 < len(encoded) <= 100:
        raise ValueError(f"name = {name!r}: {len(encoded)} bytes, a ustar header holds 1 to 100")
    if not 0 <= size < 1 << 63:
        raise ValueError(f"size = {size} of {name!r}: expected 0 to 2**63 - 1")
    block = bytearray(encoded.ljust(BLOCK, b"\0"))
    block[100:124] = b"0000644\0" + b"0000000\0" * 2
    block[_SIZE] = b"%011o\0" % size if size < 8**11 else _BINARY + size.to_bytes(11)  # from 8 GiB on, as GNU tar
    block[136:148] = b"%011o\0" % 0
    block[_CHECKSUM] = b" " * 8
    block[_TYPE] = ord("0")
    block[_MAGIC] = _USTAR
    block[_CHECKSUM] = b"%06o\0 " % sum(block)
    return bytes(block)


def list_members(file: BinaryIO, shard: str) -> Iterator[Member]:
    """List the regular files of a shard in order, without folders. Reads only headers, so `file` must be seekable.

    Bytes of a name that are not UTF-8 become lone surrogates, as in Python's file names, so different names stay
    different. Raises CorruptData naming shard and offset for a bad checksum, a truncated file, a sparse file, a member
    of another type, or data after the block of zeros that ends the shard.
    """
    offset = start = 0
    extended: dict[str, str] = {}
    origin = file.tell()
    end = file.seek(0, os.SEEK_END) - origin
    file.seek(origin)
    while True:
        block = file.read(BLOCK)
        place = f"byte {offset:,}"
        if len(block) < BLOCK:
            raise CorruptData(shard, place, f"{len(block)} bytes where a header or the end was expected: a cut shard")
        if not any(block):
            if extended:
                raise CorruptData(shard, place, f"a header gave {sorted(extended)} and no file follows: a cut shard")
            return _require_zeros(file, shard, offset)
        name, size, kind = _parse(block, shard, place)
        if kind not in (_PAX, _PAX_OF_ALL, _LONG_NAME):
            name = extended.get("path", name)
            size = int(extended.get("size", size))
            extended = {}
        if kind == _FOLDER:
            size = 0  # some writers give the size of the folder's files, none writes contents
        begin = offset + BLOCK
        padded = size + -size % BLOCK
        if begin + padded > end:
            wrong = f"{name}: {size:,} bytes were promised, the shard ends after {end - begin:,}"
            raise CorruptData(shard, place, wrong)
        offset = begin + padded
        if kind == _PAX:
            extended |= _records(file.read(padded)[:size], shard, place)
            continue  # the file that follows begins here: `start` stays
        if kind == _LONG_NAME:
            extended["path"] = _text(file.read(padded)[:size].partition(b"\0")[0])
            continue
        if kind in _FILES:
            yield Member(name, start, origin + begin, size)
        elif kind not in (_FOLDER, _PAX_OF_ALL):
            raise CorruptData(shard, place, f"{name}: a member of type {kind!r}; a shard holds regular files only")
        file.seek(origin + offset)
        start = offset


def _require_zeros(file: BinaryIO, shard: str, end: int) -> None:
    """Refuse members behind the zeros: a block that was never written to the disk reads as zeros too."""
    offset = end + BLOCK
    while chunk := file.read(128 * BLOCK):
        if behind := chunk.lstrip(b"\0"):
            wrong = f"expected zeros to the end of the file, since those at byte {end:,} end the shard"
            place = f"byte {offset + len(chunk) - len(behind):,}"
            raise CorruptData(shard, place, f"{wrong}: a hole there, or two shards joined")
        offset += len(chunk)


def _parse(block: bytes, shard: str, place: str) -> tuple[str, int, str]:
    """(name, size, type) of a header, whose checksum is verified."""
    try:
        stored, size = (_field(block[field]) for field in (_CHECKSUM, _SIZE))
    except ValueError:
        raise CorruptData(shard, place, "this is not a tar header: its numbers are not octal") from None
    if (total := sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")) != stored:
        raise CorruptData(shard, place, f"the header's checksum is {total}, stored is {stored}")
    name = _text(block[_NAME].partition(b"\0")[0])
    if block[_MAGIC] == _USTAR and (prefix := block[_PREFIX].partition(b"\0")[0]):
        name = f"{_text(prefix)}/{name}"
    return name, size, chr(block[_TYPE])


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _records(contents: bytes, shard: str, place: str) -> dict[str, str]:
    """The "length key=value" lines of a pax header; the length counts the newline at the end."""
    records = {}
    at = 0
    try:
        while at < len(contents):
            length = _number(contents[at : contents.index(b" ", at)])
            line = contents[at : at + length].partition(b" ")[2]
            key, equals, value = line[:-1].decode().partition("=")
            if len(contents) < at + length or not line.endswith(b"\n") or not equals:
                raise ValueError(line)
            records[key], at = value, at + length
        _number(records.get("size", "0").encode())
    except ValueError:
        raise CorruptData(shard, place, "a pax header that is not made of records") from None
    if sparse := next((key for key in records if key.startswith(_SPARSE)), None):
        wrong = "a sparse file, which would be read as a map of its holes; write it with tar without -S"
        raise CorruptData(shard, place, f"{sparse}: {wrong}")
    return records


def _field(field: bytes) -> int:
    """A number of a header: octal digits, or binary as GNU tar writes large ones."""
    if field[:1] == _BINARY and (number := int.from_bytes(field[1:])) < 1 << 63:
        return number
    return _number(field.strip(b" \0") or b"0", 8)


def _number(digits: bytes, base: int = 10) -> int:
    """Digits of a header or a pax record; int() alone would accept a sign, a prefix, spaces and underscores."""
    if not digits.isdigit():
        raise ValueError(digits)
    return int(digits, base)
