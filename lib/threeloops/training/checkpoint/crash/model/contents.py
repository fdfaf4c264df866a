"""Possible contents of a file after a crash: sectors, each as of its own time, up to a size that the file once had.

The kernel writes dirty pages back whenever it likes, so each sector may have any of its versions since the last sync,
independently of the others. The size may be any that the file had, or any whole number of sectors in between.
Truncation is an exception. Writes after it go to blocks that become free only when the truncation is on disk, so it
starts a new generation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from random import Random

import numpy as np

from threeloops.training.checkpoint.crash.model.disk import Inode, changed_content
from threeloops.training.checkpoint.crash.model.operations import Truncate
from threeloops.training.checkpoint.crash.model.rules import Rules

__all__ = ["Content", "Contents", "Key", "content_key", "possible_contents", "some"]

_SAMPLES = 24
"""The number of random contents besides the corners, if there are too many to list all."""
_LARGE = 1 << 16
"""Bytes of a content that is not kept but put together whenever it is asked for."""

Key = bytes | tuple[int, int]
"""Equal for equal contents: a small content itself, the length and hash of a large one."""


def content_key(data: bytes) -> Key:
    return data if len(data) <= _LARGE else (len(data), hash(data))


@dataclass(frozen=True)
class Content:
    """One possibility. `newest` is the position of the last operation of which something is on disk, -1 for none."""

    source: "bytes | _Choice"
    newest: int
    key: Key

    @property
    def data(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.data()


@dataclass(frozen=True)
class Contents:
    choices: list[Content]
    """The complete content first."""
    all_of_them: bool


@dataclass(frozen=True)
class _Size:
    length: int
    written: int
    """The number of bytes up to which the file had been written."""
    position: int


@dataclass
class _Generation:
    sector: int
    position: int
    """The position of the cut with which it starts, -1 for the durable content."""
    base: bytes
    floor: int
    """Bytes that were there before the file grew."""
    sizes: list[_Size]
    versions: dict[int, list[int]] = field(default_factory=dict)
    """The versions of each written sector, by its number, as rows of the table below, the oldest first. Row 0 stands
    for the content in `base`."""
    rows: list[bytes] = field(default_factory=list)
    """The table, a sector or several in each piece."""
    ends: list[int] = field(default_factory=lambda: [0])
    """The number of bytes up to which the file had been written when a sector was last as in this row, by row."""
    positions: list[int] = field(default_factory=lambda: [-1])
    base_ends: dict[int, int] = field(default_factory=dict)
    """The same for row 0, which all sectors share."""

    @cached_property
    def table(self) -> np.ndarray:
        return np.frombuffer(bytes(self.sector) + b"".join(self.rows), np.uint8).reshape(-1, self.sector)

    @cached_property
    def position_of(self) -> np.ndarray:
        return np.array(self.positions)

    @cached_property
    def numbers(self) -> list[int]:
        return sorted(self.versions)

    def add(self, first: int, data: bytes, end: int, position: int) -> None:
        """A new version of some neighbouring sectors."""
        count = -(-len(data) // self.sector)
        self.rows.append(data.ljust(count * self.sector, b"\0"))
        for number in range(first, first + count):
            self.versions.setdefault(number, [0]).append(len(self.ends))
            self.ends.append(end)
            self.positions.append(position)

    def end(self, number: int, version: int) -> int:
        row = self.versions[number][version]
        return self.ends[row] if row else self.base_ends.get(number, 0)

    def stood_until(self, number: int, written: int) -> None:
        """The newest version of a sector was right until so much of the file was written."""
        row = self.versions[number][-1] if number in self.versions else 0
        if row:
            self.ends[row] = max(self.ends[row], written)
        else:
            self.base_ends[number] = max(self.base_ends.get(number, 0), written)


@dataclass(frozen=True, eq=False)
class _Choice:
    """A size, and a row for each sector that is not as in the base."""

    generation: _Generation
    size: _Size
    numbers: np.ndarray
    rows: np.ndarray

    @property
    def newest(self) -> int:
        newest = self.generation.position_of[self.rows].max(initial=-1)
        return max(self.size.position, self.generation.position, int(newest))

    def data(self) -> bytes:
        generation = self.generation
        length = self.size.length
        sectors = -(-length // generation.sector)
        content = bytearray(sectors * generation.sector)
        content[: min(length, len(generation.base))] = memoryview(generation.base)[:length]
        table = np.frombuffer(content, np.uint8).reshape(-1, generation.sector)
        table[self.numbers] = generation.table[self.rows]
        return bytes(memoryview(content)[:length])


def possible_contents(inode: Inode, rules: Rules, most: int, *, flushed: int = -1, cut: int = -1) -> Contents:
    """Return all possible contents, or, if there are more than `most`, corners and a sample that is always the same.

    Args:
        flushed: operations up to this position are on disk.
        cut: truncations up to this position are on disk.
    """
    if flushed >= 0:
        pending = [write for write in inode.pending if write[0] > flushed]
        inode = Inode(inode.number, inode.name, inode.latest, changed_content(inode, flushed), pending)
    generations = _generations(inode, rules.sector)
    oldest = max((g.position for g in generations if g.position <= cut), default=-1)
    generations = [generation for generation in generations if generation.position >= oldest]
    complete = _count(generations, most) <= most
    whole = bytes(inode.latest)
    key = content_key(whole)
    contents = {key: Content(whole, inode.pending[-1][0] if inode.pending else -1, key)}
    for generation in generations:
        for choice in _distinct(generation, rules, complete):
            data = choice.data()
            content = Content(choice if len(data) > _LARGE else data, choice.newest, content_key(data))
            earlier = contents.get(content.key)
            if earlier is None:
                contents[content.key] = content
            elif content.newest < earlier.newest:
                contents[content.key] = Content(earlier.source, content.newest, content.key)
    return Contents(list(contents.values()), complete)


def _generations(inode: Inode, sector: int) -> list[_Generation]:
    content = bytearray(inode.durable)
    written = len(content)
    now = _Generation(sector, -1, bytes(content), len(content), [_Size(len(content), written, -1)])
    generations = [now]
    for position, operation in inode.pending:
        if isinstance(operation, Truncate):
            size = operation.size
            if size < len(content):
                del content[size:]
                written = min(written, size)
                now = _cut(now, position, size, written)
                generations.append(now)
            else:
                content.extend(bytes(size - len(content)))
                now.sizes.append(_Size(size, written, position))
            continue
        if not operation.data:
            continue
        before = len(content)
        end = operation.offset + len(operation.data)
        content.extend(bytes(max(0, operation.offset - before)))
        content[operation.offset : end] = operation.data
        first = operation.offset // sector
        last = (end - 1) // sector
        for number in range(first, last + 1):
            now.stood_until(number, written)
        now.add(first, bytes(content[first * sector : (last + 1) * sector]), max(written, end), position)
        now.sizes += [_Size(size, size, position) for size in range((before // sector + 1) * sector, end, sector)]
        if end > written:
            now.sizes.append(_Size(len(content), end, position))
        written = max(written, end)
    return generations


def _cut(now: _Generation, position: int, size: int, written: int) -> _Generation:
    """The generation after a cut: sectors below it are as old or new as they were."""
    sector = now.sector
    after = _Generation(now.sector, position, now.base[:size], min(now.floor, size), [])
    after.sizes.append(_Size(size, written, position))
    after.base_ends = {number: min(end, size) for number, end in now.base_ends.items()}
    for number, rows in now.versions.items():
        if (below := size - number * sector) > 0:
            for row in rows[1:]:
                data = now.table[row, :below].tobytes().ljust(sector, b"\0")
                after.add(number, data, min(now.ends[row], size), now.positions[row])
    return after


def _count(generations: list[_Generation], most: int) -> int:
    """Count the choices. If there are more than `most`, the result is some number above it."""
    count = sum(len(generation.sizes) for generation in generations)
    for generation in generations if count <= most else ():
        for size in generation.sizes:
            count -= 1
            choices = 1
            for number, versions in generation.versions.items():
                choices *= len(versions) if number * generation.sector < size.length else 1
                if choices > most:
                    return choices
            count += choices
    return count


def _oldest_legal(generation: _Generation, rules: Rules, size: _Size) -> dict[int, int]:
    """Return the oldest version of each sector that may be on disk together with this size."""
    needed: dict[int, int] = {}
    if rules.growth == "any":
        return needed
    last = (min(size.length, size.written) - 1) // rules.sector
    for number, versions in generation.versions.items() if rules.growth == "all" else _one(generation, last):
        end = min((number + 1) * rules.sector, size.written, size.length)
        if end > generation.floor and number * rules.sector < size.length:
            end = min(end, generation.end(number, -1))  # less where a later write left a gap
            needed[number] = next(i for i in range(len(versions)) if generation.end(number, i) >= end)
    return needed


def _one(generation: _Generation, number: int) -> list[tuple[int, list[int]]]:
    return [(number, generation.versions[number])] if number in generation.versions else []


def _every_choice(generation: _Generation, rules: Rules) -> Iterator[tuple[_Size, dict[int, int]]]:
    for size in generation.sizes:
        needed = _oldest_legal(generation, rules, size)
        visible = [number for number in generation.versions if number * rules.sector < size.length]
        ranges = [range(needed.get(number, 0), len(generation.versions[number])) for number in visible]
        for picks in product(*ranges):
            yield size, dict(zip(visible, picks, strict=True))


def _corners(generation: _Generation, rules: Rules) -> Iterator[tuple[_Size, dict[int, int]]]:
    """Choose writes to survive, for each of some sizes: none, all, all up to some moment, or one side of the file
    without the other. Then add a sample."""
    versions = generation.versions
    numbers = generation.numbers
    half = len(numbers) // 2
    newest = {number: len(versions[number]) - 1 for number in numbers}
    patterns: list[dict[int, int]] = [{}, newest]
    for part in (numbers[:1], numbers[-1:], numbers[:half], numbers[half:], numbers[half : half + 1]):
        patterns.append({number: newest[number] for number in part})
        without = set(part)
        patterns.append({number: newest[number] for number in numbers if number not in without})
    positions = generation.positions
    moments = sorted({positions[row] for rows in versions.values() for row in rows})
    for moment in some(moments, 8):
        patterns.append({n: max(i for i, v in enumerate(versions[n]) if positions[v] <= moment) for n in numbers})
    sizes = some(generation.sizes, 6)
    random = Random(len(generation.base))
    needed = {size: _oldest_legal(generation, rules, size) for size in sizes}
    for pattern in patterns:
        for size in sizes:
            yield size, _legal(pattern, needed[size])
    for _ in range(_SAMPLES):
        size = random.choice(generation.sizes)
        pattern = {n: int(random.random() * (newest[n] + 1)) for n in numbers}
        yield size, _legal(pattern, _oldest_legal(generation, rules, size))


def _legal(picks: dict[int, int], needed: dict[int, int]) -> dict[int, int]:
    return picks | {number: max(oldest, picks.get(number, 0)) for number, oldest in needed.items()}


def some(values: list, most: int) -> list:
    """Choose at most `most` of the values, evenly spaced, with the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _distinct(generation: _Generation, rules: Rules, complete: bool) -> Iterator[_Choice]:
    versions = generation.versions
    seen = set[tuple]()
    for size, picks in _every_choice(generation, rules) if complete else _corners(generation, rules):
        end = -(-size.length // generation.sector)
        chosen = {number: versions[number][pick] for number, pick in picks.items() if pick and number < end}
        numbers, rows = (np.fromiter(column, np.int64, len(chosen)) for column in (chosen.keys(), chosen.values()))
        key = (size, hash(numbers.tobytes()), hash(rows.tobytes()))
        if key not in seen:
            seen.add(key)
            yield _Choice(generation, size, numbers, rows)
