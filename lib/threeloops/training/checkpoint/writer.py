"""One rank's share of a checkpoint: one file, checksummed while it is written, of what has changed since the last.

Checksums are computed on other threads while the file is written, so a save takes as long as the slower of the two.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from threeloops.training.checkpoint.format import bytes_of, checksum, header, item_size, name_of
from threeloops.training.checkpoint.manifest import BLOCK, Block, Entry, File, Manifest, Piece, committed_as
from threeloops.training.checkpoint.pieces import Box
from threeloops.training.checkpoint.store import Store

__all__ = ["Part", "Saved", "merge", "saved_blocks", "workers", "write_part"]

Saved = dict[tuple[str, Box, str], tuple[tuple[File, ...], tuple[Block, ...]]]
"""The blocks of an earlier checkpoint, by tensor, box and type, with the files that they number."""


class Part(msgspec.Struct, frozen=True):
    """A manifest of what one rank wrote."""

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
) -> Part:
    """Write a rank's file.

    Args:
        boxes: what the rank writes, by the tensor's name: contiguous, on the CPU.
        shapes: the global shape of each tensor.
        before: blocks that were saved earlier; those that are equal are referred to, and not written again.
        identifies: a later save may compare with this one; see `checksum`.
    """
    items = [_Item(tensor, box, name_of(t.dtype), bytes_of(t)) for (tensor, box), t in boxes.items()]
    items.sort(key=lambda item: (-item_size(item.dtype), item.name, item.box))
    pool = ThreadPoolExecutor(workers())
    try:
        for item in items:
            item.compare(before, pool)
        runs = [_Run(item, first, last) for item in items for first, last in item.changed()]
        top = header([run.described(shapes[run.item.name]) for run in runs], {"format": "pt"})
        end = len(top)
        sums: list[_Sum] = []
        for run in runs:
            for number in range(run.first, run.last):
                block, known = run.item.block(number), run.item.known.get(number)
                sums.append((run.item, number, end, known or _summed(pool, block, identifies)))
                end += len(block)
        if runs:
            name = store.write(attempt, name, _chunks(top, runs))
        return _part(items, sums, File(committed_as(attempt), name, end, len(top), checksum(top, identifies=False)))
    finally:
        pool.shutdown(cancel_futures=True)


def _summed(pool: ThreadPoolExecutor, block: memoryview, identifies: bool) -> Future[bytes]:
    try:
        return pool.submit(checksum, block, identifies=identifies)
    except RuntimeError:  # the main thread has ended, and no pool takes work any more
        done: Future[bytes] = Future()
        done.set_result(checksum(block, identifies=identifies))
        return done


@dataclass
class _Item:
    """A box on its way to the file."""

    name: str
    box: Box
    dtype: str
    data: memoryview
    reused: dict[int, tuple[File, Block]] = field(default_factory=dict)
    known: dict[int, Future[bytes]] = field(default_factory=dict)
    """Checksums that were compared already."""

    @property
    def count(self) -> int:
        return -(-len(self.data) // BLOCK)

    def block(self, number: int) -> memoryview:
        return self.data[number * BLOCK :][:BLOCK]

    def compare(self, before: Saved, pool: ThreadPoolExecutor) -> None:
        """Find the blocks that are as they were."""
        files, old = before.get((self.name, self.box, self.dtype), ((), ()))
        if old:
            self.known = {n: _summed(pool, self.block(n), True) for n in range(self.count)}
            self.reused = {
                number: (files[block.file], block)
                for number, block in enumerate(old)
                if block.checksum == self.known[number].result()
            }

    def changed(self) -> Iterator[tuple[int, int]]:
        """Runs of blocks to be written: first, and the one after the last."""
        first = 0
        for number in range(self.count + 1):
            if number == self.count or number in self.reused:
                if first < number:
                    yield first, number
                first = number + 1


@dataclass(frozen=True)
class _Run:
    """Blocks of an item that are written one after the other."""

    item: _Item
    first: int
    last: int
    """The one after the last."""

    @property
    def data(self) -> memoryview:
        return self.item.data[self.first * BLOCK : self.last * BLOCK]

    def described(self, shape: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
        """As an entry of the file's header: whole tensors by their names, boxes with their place as well."""
        key, box = self.item.name, self.item.box
        if box.shape != shape:
            key += f"[{', '.join(f'{start}:{start + length}' for start, length in zip(*box, strict=True))}]"
        if self.last - self.first == self.item.count:
            return key, self.item.dtype, box.shape
        return f"{key}, bytes from {self.first * BLOCK}", "U8", (len(self.data),)


def _chunks(top: bytes, runs: Sequence[_Run]) -> Iterator[bytes | memoryview]:
    yield top
    for run in runs:
        for number in range(run.first, run.last):
            yield run.item.block(number)


_Sum = tuple[_Item, int, int, Future[bytes]]
"""A block of an item by number, its place in the file, and its checksum."""


def _part(items: Sequence[_Item], sums: Sequence[_Sum], file: File) -> Part:
    numbers = {file: 0}
    blocks: dict[int, dict[int, Block]] = {id(item): {} for item in items}
    for item, number, offset, future in sums:
        blocks[id(item)][number] = Block(0, offset, len(item.block(number)), future.result())
    for item in items:
        for number, (where, block) in item.reused.items():
            index = numbers.setdefault(where, len(numbers))
            blocks[id(item)][number] = msgspec.structs.replace(block, file=index)
    pieces: dict[str, list[Piece]] = {}
    for item in items:
        piece = Piece(*item.box, tuple(blocks[id(item)][number] for number in range(item.count)))
        pieces.setdefault(item.name, []).append(piece)
    return Part(tuple(numbers), pieces)


def merge(
    parts: Sequence[Part], described: Mapping[str, tuple[str, tuple[int, ...]]]
) -> tuple[tuple[File, ...], dict[str, Entry]]:
    """The files and tensors of all ranks. `described` has the type and shape of every tensor, empty ones too."""
    numbers: dict[File, int] = {}
    pieces: dict[str, list[Piece]] = {name: [] for name in described}
    for part in parts:
        for name, found in part.pieces.items():
            for piece in found:
                blocks = (
                    msgspec.structs.replace(block, file=numbers.setdefault(part.files[block.file], len(numbers)))
                    for block in piece.blocks
                )
                pieces[name].append(Piece(piece.start, piece.shape, tuple(blocks)))
    return tuple(numbers), {name: Entry(*described[name], tuple(found)) for name, found in pieces.items()}


def saved_blocks(manifest: Manifest) -> Saved:
    return {
        (name, piece.box, entry.dtype): (manifest.files, piece.blocks)
        for name, entry in manifest.tensors.items()
        for piece in entry.pieces
    }
