"""Read only the blocks that overlap with the request, and check every byte against its checksum."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod

import torch
from torch import Tensor

from threeloops.training.checkpoint.format import DTYPES, CorruptCheckpointError, bytes_of, is_as_written, item_size
from threeloops.training.checkpoint.manifest import BLOCK, Block, Entry, File, Manifest, Piece
from threeloops.training.checkpoint.pieces import Box, held, overlap
from threeloops.training.checkpoint.store import Store
from threeloops.training.checkpoint.writer import workers

__all__ = ["check_files", "read_into"]

_RUN = 4
"""Blocks that are read at once."""


def check_files(store: Store, manifest: Manifest) -> None:
    """Raise CorruptCheckpointError if a file is missing, or has another size or another header."""
    for file in manifest.files:
        place = f"{file.directory}/{file.name}"
        try:
            if (size := store.size(file.directory, file.name)) != file.size:
                raise CorruptCheckpointError(f"{place} has {size} bytes: expected {file.size}")
            top = bytearray(file.header)
            store.read(file.directory, file.name, 0, memoryview(top))
        except (EOFError, FileNotFoundError) as error:
            raise CorruptCheckpointError(f"{place} cannot be read: {error}") from None
        if not is_as_written(top, file.checksum):
            raise CorruptCheckpointError(f"{place} does not begin as it was written: its header has another checksum")


def read_into(store: Store, manifest: Manifest, asked: Mapping[str, object]) -> None:
    """Fill the tensors of `asked`, which are in the manifest with their types and shapes.

    Raises CorruptCheckpointError, with some tensors filled, if a block is not as it was written.
    """
    with ThreadPoolExecutor(workers()) as pool:
        jobs = []
        for (name, box), values in held(asked).items():
            jobs += [
                pool.submit(_read_overlap, store, manifest.files, name, manifest.tensors[name], piece, box, values, run)
                for piece in manifest.tensors[name].pieces
                for run in _jobs(piece, box, values)
            ]
        try:
            for job in jobs:
                job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _jobs(piece: Piece, box: Box, values: Tensor) -> Iterable[range | None]:
    """Return runs of a piece's blocks that can be read directly to their places, or None for one job that uses a
    buffer."""
    if not overlap(piece.box, box):
        return []
    if piece.box == box and values.is_contiguous() and values.device.type == "cpu":
        return [range(first, min(first + _RUN, len(piece.blocks))) for first in range(0, len(piece.blocks), _RUN)]
    return [None]


def _read_overlap(
    store: Store,
    files: tuple[File, ...],
    name: str,
    entry: Entry,
    piece: Piece,
    box: Box,
    values: Tensor,
    run: range | None,
) -> None:
    if run is not None:
        data = bytes_of(values)[run.start * BLOCK : run.stop * BLOCK]
        _read_blocks(store, files, name, piece.blocks[run.start : run.stop], data)
        return
    common = overlap(piece.box, box)
    assert common is not None
    size = item_size(entry.dtype)
    strides = _strides(piece.shape)
    inside = [start - first for start, first in zip(common.start, piece.start, strict=True)]
    begin = sum(at * stride for at, stride in zip(inside, strides, strict=True))
    end = begin + 1 + sum((length - 1) * stride for length, stride in zip(common.shape, strides, strict=True))
    first = begin * size // BLOCK
    last = (end * size - 1) // BLOCK + 1
    buffer = torch.empty(sum(block.length for block in piece.blocks[first:last]), dtype=torch.uint8)
    _read_blocks(store, files, name, piece.blocks[first:last], bytes_of(buffer))
    source = buffer.view(DTYPES[entry.dtype]).as_strided(common.shape, strides, begin - first * BLOCK // size)
    target = values
    for dim, (start, length) in enumerate(zip(common.start, common.shape, strict=True)):
        target = target.narrow(dim, start - box.start[dim], length)
    target.copy_(source)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _read_blocks(store: Store, files: tuple[File, ...], name: str, blocks: tuple[Block, ...], into: memoryview) -> None:
    for run in _neighbours(blocks):
        file = files[run[0].file]
        length = sum(block.length for block in run)
        try:
            store.read(file.directory, file.name, run[0].offset, into[:length])
        except (EOFError, FileNotFoundError) as error:
            raise CorruptCheckpointError(f"{name!r} cannot be read: {error}") from None
        for block in run:
            data = into[: block.length]
            into = into[block.length :]
            if not is_as_written(data, block.checksum):
                raise CorruptCheckpointError(
                    f"{name!r} is not what was written: bytes {block.offset} to {block.offset + block.length - 1} of "
                    f"{file.directory}/{file.name} have another checksum"
                )


def _neighbours(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Runs of blocks that follow one another in one file."""
    run: list[Block] = []
    for block in blocks:
        if run and (block.file, block.offset) != (run[-1].file, run[-1].offset + run[-1].length):
            yield run
            run = []
        run.append(block)
    if run:
        yield run
