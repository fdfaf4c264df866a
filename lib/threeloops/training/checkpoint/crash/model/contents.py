"""What a file may hold after a crash: its sectors, each as it was at a time of its own, up to a size that it once had.

The kernel writes dirty pages back whenever it likes, so each sector is at one of its versions since the last sync,
whatever the others are. Sizes are those that the file had, and any whole number of sectors on the way. A cut is the
exception: what is written after it gets to blocks that are free only when the cut is on disk; it starts a generation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from random import Random

from threeloops.training.checkpoint.crash.model.disk import Inode, changed_content
from threeloops.training.checkpoint.crash.model.operations import Truncate
from threeloops.training.checkpoint.crash.model.rules import Rules

__all__ = ["Content", "Contents", "possible_contents", "some"]

_SAMPLES = 24
"""Random contents beside the corners, where there are too many to list all."""


@dataclass(frozen=True)
class Content:
    """One possibility. `newest` is the position of the last operation of which something is on disk, -1 for none."""

    data: bytes
    newest: int


@dataclass(frozen=True)
class Contents:
    choices: list[Content]
    """The complete content first."""
    all_of_them: bool


@dataclass(frozen=True)
class _Version:
    data: bytes
    end: int
    """How far the file had been written, in bytes, when the sector was last like this."""
    position: int


@dataclass
class _Generation:
    position: int
    """Of the cut with which it starts, -1 for the durable content."""
    base: bytes
    floor: int
    """Bytes that were there before the file grew."""
    sizes: list[tuple[int, int, int]]
    """Size, how far the file had been written, and position."""
    versions: dict[int, list[_Version]] = field(default_factory=dict)
    """By number of the sector, the oldest first, of those that have more than one."""


def possible_contents(inode: Inode, rules: Rules, most: int, *, flushed: int = -1, cut: int = -1) -> Contents:
    """All possibilities, or where they are more than `most`, corners and a sample that is always the same.

    Args:
        flushed: what was done up to this position is on disk.
        cut: sizes that were made smaller up to this position are smaller on disk.
    """
    if flushed >= 0:
        pending = [each for each in inode.pending if each[0] > flushed]
        inode = Inode(inode.number, inode.name, inode.latest, changed_content(inode, flushed), pending)
    generations = _generations(inode, rules.sector)
    oldest = max((g.position for g in generations if g.position <= cut), default=-1)
    generations = [each for each in generations if each.position >= oldest]
    count = sum(
        prod(len(v) for sector, v in g.versions.items() if sector * rules.sector < size)
        for g in generations
        for size, _, _ in g.sizes
    )
    whole = bytes(inode.latest)
    newest = {whole: inode.pending[-1][0] if inode.pending else -1}
    for generation in generations:
        for size, picks in _every_choice(generation, rules) if count <= most else _corners(generation, rules):
            content = _assemble(generation, size, picks, rules.sector)
            newest[content.data] = min(content.newest, newest.get(content.data, content.newest))
    return Contents([Content(*each) for each in newest.items()], count <= most)


def _generations(inode: Inode, sector: int) -> list[_Generation]:
    content = bytearray(inode.durable)
    written = len(content)
    now = _Generation(-1, bytes(content), len(content), [(len(content), written, -1)])
    found = [now]
    for position, operation in inode.pending:
        if isinstance(operation, Truncate):
            size = operation.size
            if size < len(content):
                del content[size:]
                written = min(written, size)
                now = _cut(now, position, size, written, sector)
                found.append(now)
            else:
                content.extend(bytes(size - len(content)))
                now.sizes.append((size, written, position))
            continue
        if not operation.data:
            continue
        before, end = len(content), operation.offset + len(operation.data)
        content.extend(bytes(max(0, operation.offset - before)))
        content[operation.offset : end] = operation.data
        for number in range(operation.offset // sector, (end - 1) // sector + 1):
            versions = now.versions.setdefault(number, [_Version(_sector(now.base, number, sector), 0, -1)])
            versions[-1] = replace(versions[-1], end=max(versions[-1].end, written))  # it was right until now
            versions.append(_Version(_sector(content, number, sector), max(written, end), position))
        for size in range((before // sector + 1) * sector, end, sector):
            now.sizes.append((size, size, position))
        if end > written:
            now.sizes.append((len(content), end, position))
        written = max(written, end)
    return found


def _cut(now: _Generation, position: int, size: int, written: int, sector: int) -> _Generation:
    """The generation after a cut: sectors below it are as old or new as they were."""
    versions = {}
    for number, each in now.versions.items():
        if (left := size - number * sector) > 0:
            versions[number] = [
                _Version(v.data[:left] + bytes(max(0, len(v.data) - left)), min(v.end, size), v.position) for v in each
            ]
    return _Generation(position, now.base[:size], min(now.floor, size), [(size, written, position)], versions)


def _sector(content: bytes | bytearray, number: int, sector: int) -> bytes:
    return bytes(content[number * sector : (number + 1) * sector]).ljust(sector, b"\0")


def _oldest_legal(generation: _Generation, rules: Rules, size: int, written: int) -> dict[int, int]:
    """By sector, the oldest version that may be on disk together with this size."""
    needed = {}
    last = (min(size, written) - 1) // rules.sector
    for number, versions in generation.versions.items():
        end = min((number + 1) * rules.sector, written, size)
        grown = end > generation.floor and number * rules.sector < size
        if grown and (rules.growth == "all" or (rules.growth == "end" and number == last)):
            end = min(end, versions[-1].end)  # less where a later write left a gap
            needed[number] = next(i for i, version in enumerate(versions) if version.end >= end)
    return needed


def _every_choice(generation: _Generation, rules: Rules) -> Iterator[tuple[tuple[int, int, int], dict[int, int]]]:
    for each in generation.sizes:
        size, written, _ = each
        needed = _oldest_legal(generation, rules, size, written)
        visible = [number for number in generation.versions if number * rules.sector < size]
        ranges = [range(needed.get(number, 0), len(generation.versions[number])) for number in visible]
        for picks in product(*ranges):
            yield each, dict(zip(visible, picks, strict=True))


def _corners(generation: _Generation, rules: Rules) -> Iterator[tuple[tuple[int, int, int], dict[int, int]]]:
    """Nothing, everything, everything up to some moment, and one side of the file without the other, under each of
    some sizes; then a sample."""
    versions = generation.versions
    numbers = sorted(versions)
    half = len(numbers) // 2
    newest = {number: len(versions[number]) - 1 for number in numbers}
    patterns: list[dict[int, int]] = [{}, newest]
    for part in (numbers[:1], numbers[-1:], numbers[:half], numbers[half:], numbers[half : half + 1]):
        patterns.append({number: newest[number] for number in part})
        patterns.append({number: newest[number] for number in numbers if number not in set(part)})
    moments = sorted({version.position for each in versions.values() for version in each})
    for moment in some(moments, 8):
        patterns.append({n: max(i for i, v in enumerate(versions[n]) if v.position <= moment) for n in numbers})
    sizes = some(generation.sizes, 6)
    random = Random(len(generation.base))
    samples = [
        (random.choice(generation.sizes), {n: random.randint(0, newest[n]) for n in numbers}) for _ in range(_SAMPLES)
    ]
    for each, picks in [*((size, pattern) for pattern in patterns for size in sizes), *samples]:
        size, written, _ = each
        needed = _oldest_legal(generation, rules, size, written)
        visible = [number for number in numbers if number * rules.sector < size]
        yield each, {number: max(needed.get(number, 0), picks.get(number, 0)) for number in visible}


def some(values: list, most: int) -> list:
    """Evenly among them, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _assemble(generation: _Generation, size: tuple[int, int, int], picks: dict[int, int], sector: int) -> Content:
    length, _, position = size
    data = bytearray(generation.base[:length].ljust(length, b"\0"))
    newest = max(position, generation.position)
    for number, pick in picks.items():
        version = generation.versions[number][pick]
        newest = max(newest, version.position if pick else -1)
        data[number * sector : (number + 1) * sector] = version.data
    return Content(bytes(data[:length]), newest)
