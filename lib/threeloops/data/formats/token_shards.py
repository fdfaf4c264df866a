"""Token shards: a corpus as memory-mapped arrays of integers; a window is a slice, read when it is used.

A folder holds `index.json` and shards. A shard is a header of 64 bytes and the tokens, little-endian:

    8 bytes   magic "3LTOKENS"
    4 bytes   version, 1
    4 bytes   bytes per token: 1, 2 or 4 (unsigned)
    8 bytes   number of tokens
    4 bytes   CRC32C of the tokens
    32 bytes  zero
    4 bytes   CRC32C of the 60 bytes before
"""

import errno
import json
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from threeloops.data.errors import CorruptData, MissingIndex
from threeloops.data.foreign.tokens import describe_foreign
from threeloops.data.formats.crc32c import crc32c
from threeloops.files import replace_text, replacing

__all__ = ["TokenShards", "write_token_shards"]

_MAGIC = b"3LTOKENS"
_VERSION = 1
_HEADER_BYTES = 64
_INDEX = "index.json"
_FIELDS, _CRC = struct.Struct("<8sIIQI32x"), struct.Struct("<I")
_KINDS = {1: "<u1", 2: "<u2", 4: "<u4"}


@dataclass(frozen=True)
class _Header:
    """The fields of a shard's header that differ between shards."""

    token_bytes: int
    tokens: int
    crc: int

    def pack(self) -> bytes:
        fields = _FIELDS.pack(_MAGIC, _VERSION, self.token_bytes, self.tokens, self.crc)
        return fields + _CRC.pack(crc32c(fields))


def _write_shard(path: Path, tokens: NDArray) -> _Header:
    """Write tokens, unsigned integers of 1, 2 or 4 bytes and shape (n,), as one shard, whole or not at all."""
    if tokens.ndim != 1 or tokens.dtype.kind != "u" or tokens.itemsize not in _KINDS:
        raise ValueError(f"tokens are {tokens.dtype} of shape {tokens.shape}: expected uint8, uint16 or uint32, (n,)")
    stored = np.ascontiguousarray(tokens.astype(_KINDS[tokens.itemsize]))
    header = _Header(tokens.itemsize, len(tokens), crc32c(stored))
    with replacing(path) as file:
        file.write(header.pack())
        stored.tofile(file)
    return header


def _read_header(path: Path) -> _Header:
    """Read the header of a shard. Raises CorruptData if it is damaged or does not fit the size of the file."""
    with Path(path).open("rb") as file:
        raw = file.read(_HEADER_BYTES)
    size = Path(path).stat().st_size
    if len(raw) < _HEADER_BYTES:
        raise CorruptData(path, "header", f"the file has {size} bytes, a header alone has {_HEADER_BYTES}")
    magic, version, token_bytes, tokens, crc = _FIELDS.unpack_from(raw)
    if magic != _MAGIC:
        wrong = describe_foreign(Path(path)) or "this is not a token shard"
        raise CorruptData(path, "byte 0", f"begins with {magic!r}, expected {_MAGIC!r}: {wrong}")
    if _CRC.unpack_from(raw, _FIELDS.size)[0] != crc32c(raw[: _FIELDS.size]):
        raise CorruptData(path, "header", "its CRC does not match: the header is damaged")
    if version != _VERSION or token_bytes not in _KINDS:
        raise CorruptData(path, "header", f"version {version}, {token_bytes}-byte tokens: expected version {_VERSION}")
    if size != (wanted := _HEADER_BYTES + tokens * token_bytes):
        raise CorruptData(path, f"byte {size:,}", f"ends here, {wanted:,} bytes were promised by its header")
    return _Header(token_bytes, tokens, crc)


def write_token_shards(folder: Path, pieces: Iterable[NDArray], tokens_per_shard: int) -> None:
    """Cut a stream of token arrays into shards of equal size (the last may be shorter), and write the index last.

    New shards get numbers that no file has, so a corpus that is already there stays whole until the new index replaces
    the old one. At the end, or if `pieces` raises, the shards of both that the index does not list are deleted.
    """
    if tokens_per_shard < 1:
        raise ValueError(f"tokens_per_shard = {tokens_per_shard}: expected at least 1")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    old = _listed(folder)
    try:
        rows = []
        for number, tokens in enumerate(_cut(pieces, tokens_per_shard), _first_free_number(folder)):
            names.append(f"tokens-{number:05d}.bin")
            rows.append({"file": names[-1], **asdict(_write_shard(folder / names[-1], tokens))})
        replace_text(folder / _INDEX, json.dumps({"version": _VERSION, "shards": rows}, indent=1))
    finally:
        for name in {*old, *names} - set(_listed(folder)):
            (folder / name).unlink(missing_ok=True)


def _cut(pieces: Iterable[NDArray], tokens_per_shard: int) -> Iterator[NDArray]:
    """The tokens of all pieces, one shard at a time."""
    pending: list[NDArray] = []
    waiting = 0
    for piece in pieces:
        pending.append(piece)
        waiting += len(piece)
        while waiting >= tokens_per_shard:
            joined = np.concatenate(pending)
            yield joined[:tokens_per_shard]
            pending = [joined[tokens_per_shard:]]
            waiting -= tokens_per_shard
    if waiting:
        yield np.concatenate(pending)


def _first_free_number(folder: Path) -> int:
    """Above the numbers of all shards in a folder, listed or left by a writer that was killed."""
    taken = (re.fullmatch(r"tokens-(\d+)\.bin", path.name) for path in folder.iterdir())
    return max((int(match[1]) + 1 for match in taken if match), default=0)


def _listed(folder: Path) -> list[str]:
    """Return the shards that a folder's index lists, or none if it is missing or damaged."""
    try:
        return [name for name, _ in _read_rows(folder / _INDEX)]
    except (CorruptData, FileNotFoundError):
        return []


class TokenShards:
    """The tokens of a folder as one array that is not in memory.

    Opening reads only the index and the headers. Raises MissingIndex or CorruptData, naming the file, and OSError if
    the process may not open as many files as there are shards. Pickling, as for a worker process, keeps only the
    folder, which is opened again there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder).absolute()
        self.shards = _read_index(self.folder)
        self.ends = list(accumulate(header.tokens for _, header in self.shards))
        self.maps = [self._map(name, header) for name, header in self.shards]

    def _map(self, name: str, header: _Header) -> NDArray:
        kind = _KINDS[header.token_bytes]
        if not header.tokens:  # an empty file cannot be mapped
            return np.empty(0, kind)
        try:
            return np.memmap(self.folder / name, kind, "r", _HEADER_BYTES, (header.tokens,))
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise OSError(
                errno.EMFILE,
                f"{self.folder}: {len(self.shards):,} shards are mapped with one file descriptor each, more than this "
                "process may open; raise the limit (ulimit -n) or write fewer, larger shards",
            ) from None

    def __reduce__(self):
        return type(self), (self.folder,)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def window(self, start: int, length: int) -> NDArray:
        """Return tokens `start` to `start + length`: a view if one shard holds them all, otherwise a copy across
        shards."""
        if not (start >= 0 and length >= 0 and start + length <= len(self)):
            raise IndexError(f"window {start}:{start + length} of {len(self):,} tokens in {self.folder.name}")
        shard = bisect_right(self.ends, start)
        parts = []
        begin = start - (self.ends[shard - 1] if shard else 0)
        while length > 0:
            parts.append(self.maps[shard][begin : begin + length])
            length -= len(parts[-1])
            shard += 1
            begin = 0
        nothing = np.empty(0, self.maps[0].dtype if self.maps else "<u4")
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [nothing])


def _read_index(folder: Path) -> list[tuple[str, _Header]]:
    """Name and header of each shard, the index compared with the headers in the files."""
    path = folder / _INDEX
    if not path.is_file():
        foreign = describe_foreign(folder) if folder.is_dir() else ""
        instead = foreign or "without it nobody knows which shards belong together. Write them again"
        raise MissingIndex(f"{path}: missing; {instead}")
    rows = _read_rows(path)
    for name, header in rows:
        if not (folder / name).is_file():
            raise CorruptData(path, f"shard {name}", "is listed and not there")
        if (stored := _read_header(folder / name)) != header:
            wrong = f"is {stored}, the index says {header}: another shard of this name"
            raise CorruptData(folder / name, "header", wrong)
    return rows


def _read_rows(path: Path) -> list[tuple[str, _Header]]:
    """Return the name and header of each shard that an index lists. Raises CorruptData naming the index's fault."""
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if type(version := index.get("version")) is not int or version != _VERSION:
            raise ValueError(f"version {version!r}, expected {_VERSION}")
        return [_parse_row(row) for row in index["shards"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(path, "index", f"cannot be read ({type(error).__name__}: {error})") from None


def _parse_row(row: dict) -> tuple[str, _Header]:
    name = row["file"]
    fields = {field: row[field] for field in ("token_bytes", "tokens", "crc")}
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"file {name!r}, expected the name of a file in this folder")
    if wrong := {field: value for field, value in fields.items() if type(value) is not int}:
        raise ValueError(f"{wrong} of {name}, expected whole numbers")
    return name, _Header(**fields)
