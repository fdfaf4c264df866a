"""The manifest of a checkpoint: the tensors that it has, where their bytes lie, and their checksums.

A manifest is JSON, with its own SHA-256 in its last line. It is checked before it is used, because it may be torn, or
come from a newer release or another person.
"""

import hashlib
import operator
import re
import secrets
import string
from contextlib import suppress
from math import prod
from typing import Any

import msgspec

from threeloops.training.checkpoint.format import (
    DTYPES,
    CorruptCheckpointError,
    NewerCheckpointError,
    from_plain,
    item_size,
)
from threeloops.training.checkpoint.pieces import Box, overlapping

__all__ = [
    "BLOCK",
    "Block",
    "Entry",
    "File",
    "Manifest",
    "Piece",
    "VERSION",
    "as_step",
    "attempt_at",
    "committed_as",
    "decode",
    "directory_of",
    "encode",
    "step_of",
]

BLOCK = 1 << 20
"""The most bytes in one block, which has a checksum of its own. It is a multiple of every type's size."""

VERSION = 2
"""Version 1 has fewer types of tensors and of containers."""
_DIRECTORY = re.compile(r"step-(\d{8,18})(?:-r(\d{1,9}))?")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Block(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Bytes `offset` … `offset + length − 1` of file number `file`."""

    file: int
    offset: int
    length: int
    checksum: bytes
    """A SHA-256, or a CRC-32 if no later save compares with this one."""


class Piece(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One box of a tensor, row by row, in blocks of BLOCK bytes; the last may be shorter."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def box(self) -> Box:
        return Box(self.start, self.shape)


class Entry(msgspec.Struct, frozen=True, gc=False):
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class File(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A file of `size` bytes, in the directory of this step or of an earlier one, with the checksum of its header."""

    directory: str
    name: str
    size: int
    header: int
    """Bytes."""
    checksum: bytes


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int
    step: int
    world: int
    chain: int
    """How many incremental saves lie between this one and the full one that they follow."""
    files: tuple[File, ...]
    tensors: dict[str, Entry]
    values: tuple[dict[str, Any], ...]
    """Plain values of each rank, as `to_plain` gives them; those that are equal to rank 0's stand there alone."""
    lacking: tuple[tuple[str, ...], ...] = ()
    """Names that rank 0 saved and another rank did not, for each rank."""

    def values_of(self, rank: int) -> dict[str, Any]:
        lacking = self.lacking[rank] if self.lacking else ()
        values = {name: value for name, value in self.values[0].items() if name not in lacking} | self.values[rank]
        return {name: from_plain(value) for name, value in values.items()}


def as_step(step: Any) -> tuple[int, str]:
    """Return a step as a Python integer, and the error if it is not one. A directory's name has room for 18 digits."""
    with suppress(TypeError):
        step = operator.index(step)
        if 0 <= step < 10**18:
            return step, ""
    return step, f"step = {step!r}: expected a whole number from 0 to 10**18 - 1"


def directory_of(step: int, revision: int = 0) -> str:
    return f"step-{step:08d}" + (f"-r{revision}" if revision else "")


def attempt_at(directory: str) -> str:
    """Return a name for one attempt to save. It differs from every other attempt, of this job or of one that should
    have ended."""
    return f"{directory}.{''.join(secrets.choice(string.ascii_lowercase) for _ in range(8))}"


def committed_as(attempt: str) -> str:
    """The directory of the checkpoint that an attempt becomes."""
    return attempt.partition(".")[0]


def step_of(directory: str) -> tuple[int, int] | None:
    """Return the step and the revision of a directory with a checkpoint's name, or None for another name. A revision is
    a second save of the same step."""
    match = _DIRECTORY.fullmatch(directory)
    return (int(match[1]), int(match[2] or 0)) if match else None


def encode(manifest: Manifest) -> bytes:
    text = msgspec.json.encode(manifest)
    return text + b"\nsha256 " + hashlib.sha256(text).hexdigest().encode() + b"\n"


def decode(data: bytes) -> Manifest:
    """Decode a manifest. Raises CorruptCheckpointError if `encode` did not write it, and NewerCheckpointError if a
    newer release wrote it."""
    text, _, seal = data.rpartition(b"\nsha256 ")
    if seal != hashlib.sha256(text).hexdigest().encode() + b"\n":
        raise CorruptCheckpointError(f"the manifest ({len(data)} bytes) does not match its checksum")
    try:
        version = msgspec.json.decode(msgspec.json.decode(text, type=dict[str, msgspec.Raw])["version"])
        if isinstance(version, int) and version > VERSION:
            raise NewerCheckpointError(
                f"the manifest has version {version}: expected at most {VERSION}; load it with the newer release that "
                "wrote it"
            )
        if version not in range(1, VERSION + 1):
            raise CorruptCheckpointError(f"the manifest has version {version!r}: expected 1 to {VERSION}")
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError) as error:
        raise CorruptCheckpointError(f"the manifest is not one: {error}") from None
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    """Check that every size and offset lies within its parent."""
    if len(manifest.lacking) not in (0, manifest.world):
        raise CorruptCheckpointError(f"the manifest has names of {len(manifest.lacking)} ranks of {manifest.world}")
    if manifest.world < 1 or len(manifest.values) != manifest.world or manifest.step < 0 or manifest.chain < 0:
        raise CorruptCheckpointError(
            f"the manifest has step {manifest.step}, chain {manifest.chain} and values of {len(manifest.values)} ranks "
            f"of {manifest.world}"
        )
    for file in manifest.files:
        if step_of(file.directory) is None or not _FILE.fullmatch(file.name) or not 0 <= file.header <= file.size:
            raise CorruptCheckpointError(f"the manifest names a file {file.directory}/{file.name} of {file.size} bytes")
    for name, entry in manifest.tensors.items():
        if wrong := _wrong(entry, manifest.files):
            raise CorruptCheckpointError(f"{name!r}: {wrong}")


def _wrong(entry: Entry, files: tuple[File, ...]) -> str:
    """Describe the fault of a tensor's entry, or return ""."""
    if entry.dtype not in DTYPES:
        return f"type {entry.dtype!r} is not one of safetensors"
    if min((*entry.shape, 0)) < 0 or prod(entry.shape) * item_size(entry.dtype) >= 1 << 63:
        return f"shape {entry.shape} is not one"
    for piece in entry.pieces:
        whole = piece.shape == entry.shape and len(piece.start) == len(piece.shape) and not any(piece.start)
        if min((*piece.shape, 1)) < 1 or not (whole or _is_inside(piece, entry.shape)):
            return f"a piece of shape {piece.shape} at {piece.start} is not inside of {entry.shape}"
        remaining = prod(piece.shape) * item_size(entry.dtype)
        for block in piece.blocks:
            if not 0 <= block.file < len(files) or not 0 < block.length == min(remaining, BLOCK):
                return f"a block of {block.length} bytes in file {block.file}, where {remaining} bytes are left"
            if len(block.checksum) not in (4, 32):
                return f"a checksum of {len(block.checksum)} bytes"
            if not 0 <= block.offset <= files[block.file].size - block.length:
                return f"a block at {block.offset} is not inside of {files[block.file].name}"
            remaining -= block.length
        if remaining:
            return f"{remaining} bytes of the piece at {piece.start} are in no block"
    if sum(prod(piece.shape) for piece in entry.pieces) != prod(entry.shape):
        return f"the pieces do not make up {entry.shape}"
    if len(entry.pieces) > 1 and (pair := overlapping(piece.box for piece in entry.pieces)):
        return f"the pieces at {pair[0].start} and {pair[1].start} overlap"
    return ""


def _is_inside(piece: Piece, shape: tuple[int, ...]) -> bool:
    if not len(piece.start) == len(piece.shape) == len(shape):
        return False
    return all(0 <= start <= size - length for start, length, size in zip(*piece.box, shape, strict=True))
