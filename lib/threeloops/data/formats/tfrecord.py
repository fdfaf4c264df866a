"""TFRecord: records of any length, one after the other, each with two checksums.

A record is framed as length (uint64, little-endian), masked CRC32C of those 8 bytes, the data, masked CRC32C of the
data. A file has no index, header or end mark: it can only be read from the front, and one that was cut between two
records looks like a shorter one. Source: TensorFlow, `core/lib/io/record_writer.h`.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from threeloops.data.errors import CorruptData
from threeloops.data.formats.crc32c import crc32c, masked

__all__ = ["frame", "read_records"]

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")


def frame(record: bytes) -> bytes:
    """One record with its length and its two checksums: 16 bytes longer than the record."""
    length = _LENGTH.pack(len(record))
    return length + _CRC.pack(masked(crc32c(length))) + record + _CRC.pack(masked(crc32c(record)))


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a file, each checked.

    Raises CorruptData naming the file, the record's number (from 0) and its offset, for a cut file, a wrong CRC, or a
    length that runs past the end. Nothing after a damaged length can be found.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        number = 0
        while file.tell() < size:
            yield _record(file, path, number, size)
            number += 1


def _record(file: BinaryIO, path: Path, number: int, size: int) -> bytes:
    offset = file.tell()
    place = f"record {number} at byte {offset:,}"
    head = file.read(_LENGTH.size + _CRC.size)
    if len(head) < _LENGTH.size + _CRC.size:
        raise CorruptData(path, place, f"cut after {len(head)} of the 12 bytes that begin a record")
    length = _LENGTH.unpack_from(head)[0]
    stored = _CRC.unpack_from(head, _LENGTH.size)[0]
    _require_crc(path, place, "its length", stored, head[: _LENGTH.size])
    if (remaining := size - file.tell() - _CRC.size) < length:
        raise CorruptData(
            path, place, f"{length:,} bytes were promised and {max(remaining, 0):,} are there: a cut file"
        )
    data = file.read(length)
    crc = file.read(_CRC.size)
    if (read_bytes := len(data) + len(crc)) < length + _CRC.size:
        raise CorruptData(
            path, place, f"its {length:,} bytes and their CRC were there and {read_bytes:,} are left: a cut file"
        )
    _require_crc(path, place, "its data", _CRC.unpack(crc)[0], data)
    return data


def _require_crc(path: Path, place: str, what: str, stored: int, data: bytes) -> None:
    if (computed := masked(crc32c(data))) != stored:
        raise CorruptData(path, place, f"the CRC of {what} is {computed:#010x}, stored is {stored:#010x}")
