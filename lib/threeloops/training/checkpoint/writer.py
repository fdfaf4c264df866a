"""Write a rank's part of a checkpoint: one file with the blocks that have changed, checksummed while it is written.

Checksums are computed on other threads while the file is written, so a save takes as long as the slower of the two.
A state may have hundreds of thousands of tensors, and the garbage collector visits most kinds of objects many times.
So for each tensor, this module only keeps objects of types that the garbage collector skips.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

import msgspec
import numpy as np
from torch import Tensor

from threeloops.training.checkpoint.format import checksum, header, item_size, name_of, octets_of
from threeloops.training.checkpoint.manifest import BLOCK, Block, Entry, File, Manifest, Piece, committed_as
from threeloops.training.checkpoint.pieces import Box
from threeloops.training.checkpoint.store import Store

__all__ = ["RankManifest", "Saved", "merge", "saved_blocks", "workers", "write_part"]

Saved = dict[tuple[str, tuple[int, ...], tuple[int, ...], str], tuple[tuple[File, ...], tuple[Block, ...]]]
"""Boxes of an earlier checkpoint. The key is the tensor's name and the start, shape and type of the box. The value is
its blocks, and the files to which the numbers in the blocks refer."""


class RankManifest(msgspec.Struct, frozen=True):
    """The manifest of one rank's file."""

    files: tuple[File, ...]
    pieces: dict[str, list[Piece]]


def workers() -> int:
    """Threads that compute checksums beside the one that writes; zlib and hashlib let go of the interpreter's lock."""
    return max(1, min(4, len(os.sched_getaffinity(0))))


def write_part(
    store: Store,
    attempt: str,
    name: str,
    boxes: Mapping[tuple[str, Box], Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    before: Saved,
    identifies: bool,
) -> RankManifest:
    """Write a rank's file.

    Args:
        boxes: the boxes that the rank writes, by the tensor's name. They are contiguous and on the CPU.
        shapes: the global shape of each tensor.
        before: blocks that were saved earlier. Equal blocks are referred to, and not written again.
        identifies: whether a later save may compare with this one. See `checksum`.
    """
    items = [_Item(tensor, box, name_of(t.dtype), octets_of(t)) for (tensor, box), t in boxes.items()]
    items.sort(key=lambda item: (-item_size(item.dtype), item.name, item.box))
    pool = ThreadPoolExecutor(workers())
    written = threading.Event()
    try:
        _compare(items, before, pool)
        runs = [_BlockRange(item, first, last) for item in items for first, last in item.changed()]
        top = header([run.described(shapes[run.item.name]) for run in runs], {"format": "pt"})
        size = len(top) + sum(len(run.data) for run in runs)
        new = [item for item in items if not item.sums]
        with suppress(RuntimeError):  # see `_checksums`
            pool.submit(written.wait)  # one of the threads starts when the writing thread leaves its core to it
        sums = _checksums(pool, [block for item in new for block in item.blocks()], identifies)
        if runs:
            name = store.write(attempt, name, _chunks(top, runs, written))
        written.set()
        for item in new:
            item.sums = tuple(islice(sums, item.count))
        file = File(committed_as(attempt), name, size, len(top), checksum(top, identifies=False))
        return _part(items, file if runs else None)
    finally:
        written.set()
        pool.shutdown(cancel_futures=True)


def _checksums(pool: ThreadPoolExecutor, blocks: Sequence[np.ndarray], identifies: bool) -> Iterator[bytes]:
    """Begin to compute the checksums of blocks, and return them in order. Small blocks share a job."""
    jobs, job, size = list[Future[list[bytes]]](), list[np.ndarray](), 0

    def begin() -> None:
        def compute(job: Sequence[np.ndarray] = tuple(job)) -> list[bytes]:
            return [checksum(block.data, identifies=identifies) for block in job]

        try:
            jobs.append(pool.submit(compute))
        except RuntimeError:  # the main thread has ended, so the pool accepts no more work
            jobs.append(Future())
            jobs[-1].set_result(compute())

    for block in blocks:
        if job and size + len(block) > BLOCK:
            begin()
            job = []
            size = 0
        job.append(block)
        size += len(block)
    if job:
        begin()
    return (digest for job in jobs for digest in job.result())


class _Item(msgspec.Struct, gc=False):
    """A box on its way to the file."""

    name: str
    box: Box
    dtype: str
    data: np.ndarray
    """The bytes of the box."""
    reused: dict[int, tuple[File, Block]] = {}
    sums: tuple[bytes, ...] = ()
    """The checksums of all blocks, once they are known."""

    @property
    def count(self) -> int:
        return -(-len(self.data) // BLOCK)

    def blocks(self) -> Iterator[np.ndarray]:
        return (self.data[at : at + BLOCK] for at in range(0, len(self.data), BLOCK))

    def changed(self) -> Iterator[tuple[int, int]]:
        """Runs of blocks to be written: first, and the one after the last."""
        first = 0
        for number in (*sorted(self.reused), self.count):
            if first < number:
                yield first, number
            first = number + 1


def _compare(items: Sequence[_Item], before: Saved, pool: ThreadPoolExecutor) -> None:
    """Find the blocks that have not changed since an earlier save."""
    compared = [(item, old) for item in items if (old := before.get((item.name, *item.box, item.dtype)))]
    sums = _checksums(pool, [block for item, _ in compared for block in item.blocks()], identifies=True)
    for item, (files, blocks) in compared:
        item.sums = tuple(islice(sums, item.count))
        same = [n for n, (old, new) in enumerate(zip(blocks, item.sums, strict=True)) if old.checksum == new]
        item.reused = {n: (files[blocks[n].file], blocks[n]) for n in same}


class _BlockRange(msgspec.Struct, gc=False):
    """Blocks of an item that are written one after the other."""

    item: _Item
    first: int
    last: int
    """The one after the last."""

    @property
    def data(self) -> np.ndarray:
        return self.item.data[self.first * BLOCK : self.last * BLOCK]

    def described(self, shape: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
        """Return the entry of the file's header: whole tensors by their names, boxes with their place as well."""
        key = self.item.name
        box = self.item.box
        if box.shape != shape:
            key += f"[{', '.join(f'{start}:{start + length}' for start, length in zip(*box, strict=True))}]"
        if self.last - self.first == self.item.count:
            return key, self.item.dtype, box.shape
        return f"{key}, bytes from {self.first * BLOCK}", "U8", (len(self.data),)


def _chunks(top: bytes, runs: Sequence[_BlockRange], written: threading.Event) -> Iterator[bytes | memoryview]:
    """Yield the contents of the file. Set `written` when the store has taken all of them and only has to sync."""
    yield top
    for run in runs:
        data = run.data
        for at in range(0, len(data), BLOCK):
            yield data[at : at + BLOCK].data
    written.set()


def _part(items: Sequence[_Item], file: File | None) -> RankManifest:
    """Describe the blocks that were written to `file` and those in earlier files, in the order of the items."""
    numbers = {file: 0} if file else {}
    offset = file.header if file else 0
    pieces: dict[str, list[Piece]] = {}
    for item in items:
        blocks = list[Block]()
        remaining = len(item.data)
        for number, digest in enumerate(item.sums):
            length = min(remaining, BLOCK)
            remaining -= length
            if number in item.reused:
                where, block = item.reused[number]
                blocks.append(msgspec.structs.replace(block, file=numbers.setdefault(where, len(numbers))))
            else:
                blocks.append(Block(0, offset, length, digest))
                offset += length
        pieces.setdefault(item.name, []).append(Piece(*item.box, tuple(blocks)))
    return RankManifest(tuple(numbers), pieces)


def merge(
    parts: Sequence[RankManifest], described: Mapping[str, tuple[str, tuple[int, ...]]]
) -> tuple[tuple[File, ...], dict[str, Entry]]:
    """The files and tensors of all ranks. `described` has the type and shape of every tensor, empty ones too."""
    numbers: dict[File, int] = {}
    pieces: dict[str, list[Piece]] = {name: [] for name in described}
    for part in parts:
        places = [numbers.setdefault(file, len(numbers)) for file in part.files]
        same = places == list(range(len(places)))
        for name, own in part.pieces.items():
            pieces[name] += own if same else [_renumbered(piece, places) for piece in own]
    return tuple(numbers), {name: Entry(*described[name], tuple(own)) for name, own in pieces.items()}


def _renumbered(piece: Piece, places: Sequence[int]) -> Piece:
    blocks = (msgspec.structs.replace(block, file=places[block.file]) for block in piece.blocks)
    return Piece(piece.start, piece.shape, tuple(blocks))


def saved_blocks(manifest: Manifest) -> Saved:
    return {
        (name, piece.start, piece.shape, entry.dtype): (manifest.files, piece.blocks)
        for name, entry in manifest.tensors.items()
        for piece in entry.pieces
    }
