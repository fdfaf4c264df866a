"""A cache of blocks in tiers: the fastest is small, the slowest is large, and a policy says which block stays where.

A block is in one tier at most. A request asks for the blocks of its prompt, from the first: a run of keys. Those that
are found are loaded into the first tier, and those that are not are computed and put there. Whatever the first tier has
no room for moves to the second, and so on. What the last tier has no room for is lost. (Mooncake keeps blocks in the
memory of GPUs, hosts and disks, and pools the last two over all machines: Qin et al. 2024, arXiv:2407.00079.)

A policy gives each block a value when it is used, and the block of the lowest value leaves its tier first. `floor` is
the value of the block that left this tier last. A policy that adds it to its value lets blocks age that were valuable
once, as GreedyDual does (Young 1994; Cao and Irani 1997, "Cost-Aware WWW Proxy Caching Algorithms").
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from threeloops.units import require_whole

__all__ = ["BlockUse", "Eviction", "Tier", "TierHits", "TieredCache", "by_reuse_and_cost", "first_in", "lru"]


@dataclass(frozen=True)
class Tier:
    """A tier with room for `blocks`, from which one batch of blocks loads in `latency` + bytes / `bandwidth` seconds.

    By default loading takes no time, as in the memory of the GPU, where blocks are used.
    """

    name: str
    blocks: int
    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        require_whole(blocks=self.blocks)
        if not 0 <= self.latency < math.inf or not self.bandwidth > 0:
            raise ValueError(
                f"tier {self.name!r}: latency = {self.latency!r} s, bandwidth = {self.bandwidth!r} bytes/s: expected a "
                "latency of at least 0 and a bandwidth above 0"
            )

    def seconds(self, size: float) -> float:
        """Return the time in which `size` bytes load."""
        return self.latency + size / self.bandwidth if size else 0.0


@dataclass(frozen=True)
class BlockUse:
    """A block as a policy sees it: its place in the prompt (0 is the first block), how often it was used, the number
    of its first and of its last use (uses of all blocks are numbered together), and the seconds of computing it."""

    key: bytes
    place: int
    uses: int
    first: int
    last: int
    seconds: float


Eviction = Callable[[BlockUse, float], float]
"""The value of a block, given its use and the floor of the tier. The block with the lowest value leaves first."""


def lru(use: BlockUse, floor: float) -> float:
    """Evict the block whose last use is longest ago."""
    return use.last


def first_in(use: BlockUse, floor: float) -> float:
    """Evict the block that was computed first, however often it has been used since."""
    return use.first


def by_reuse_and_cost(use: BlockUse, floor: float) -> float:
    """Keep blocks that were used often and take long to compute. Others leave, however recently they were used.

    All blocks have the same size, so this is GreedyDual-Size with the frequency of use (Cherkasova 1998).
    """
    return floor + use.uses * use.seconds


@dataclass(frozen=True)
class TierHits:
    """The blocks that a request found, by tier, those that it has to compute, and the seconds until the former are
    loaded."""

    found: tuple[int, ...]
    missing: int
    seconds: float

    @property
    def blocks(self) -> int:
        """All blocks that it found."""
        return sum(self.found)


class _Shelf:
    """The blocks of one tier, and a heap of their values. Entries of the heap that are no longer true are skipped."""

    def __init__(self, tier: Tier):
        self.tier = tier
        self.uses: dict[bytes, BlockUse] = {}
        self.floor = 0.0
        self._values: dict[bytes, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, bytes]] = []

    def put(self, use: BlockUse, value: float) -> None:
        """Add a block. Equal values leave in the order of their last use."""
        self.uses[use.key] = use
        self._values[use.key] = (value, use.last)
        heapq.heappush(self._heap, (value, use.last, use.key))
        if len(self._heap) > 2 * len(self.uses) + 64:
            self._heap = [(*order, key) for key, order in self._values.items()]
            heapq.heapify(self._heap)

    def take(self, key: bytes) -> BlockUse:
        del self._values[key]
        return self.uses.pop(key)

    def evict(self) -> BlockUse:
        """Remove the block of the lowest value, and raise the floor to this value."""
        while True:
            value, last, key = heapq.heappop(self._heap)
            if self._values.get(key) == (value, last):
                self.floor = max(self.floor, value)
                return self.take(key)


class TieredCache:
    """Blocks in tiers, from the fastest to the slowest. It holds no keys and values: a block is a key.

    Args:
        block_bytes: the size of a block, for the time of loading it.
        eviction: the value of a block in its tier, for all tiers.

    Raises ValueError unless there is at least one tier, and their names differ.
    """

    def __init__(self, tiers: Sequence[Tier], block_bytes: float, eviction: Eviction = lru):
        names = [tier.name for tier in tiers]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"tiers = {names}: expected at least one, and no name twice")
        if not 0 < block_bytes < math.inf:
            raise ValueError(f"block_bytes = {block_bytes!r}: expected the bytes of a block, above 0")
        self.tiers = tuple(tiers)
        self.block_bytes = block_bytes
        self.eviction = eviction
        self.hits = [0] * len(tiers)
        self.misses = 0
        self.lost = 0  # blocks that the last tier had no room for
        self._shelves = [_Shelf(tier) for tier in tiers]
        self._turn = 0

    @property
    def hit_rate(self) -> float:
        """The share of all blocks asked for that were found in any tier. NaN before the first request."""
        asked = sum(self.hits) + self.misses
        return sum(self.hits) / asked if asked else math.nan

    def contents(self) -> dict[str, set[bytes]]:
        """Return the keys in each tier, by its name."""
        return {shelf.tier.name: set(shelf.uses) for shelf in self._shelves}

    def find(self, keys: Sequence[bytes]) -> TierHits:
        """Look for the longest run of keys, from the first, and change nothing."""
        places = self._places(keys)
        counts = tuple(places.count(number) for number in range(len(self.tiers)))
        sizes = [count * self.block_bytes for count in counts]
        seconds = sum(tier.seconds(size) for tier, size in zip(self.tiers, sizes, strict=True))
        return TierHits(counts, len(keys) - len(places), seconds)

    def use(self, keys: Sequence[bytes], seconds: float | Sequence[float] = 0.0) -> TierHits:
        """Load the blocks of a prompt that are here into the first tier, and put those that are not there, too.

        `seconds` is the time of computing a block, or a list of it for all keys. The beginning of a prompt counts as
        used last, because without it the rest is useless.
        """
        hits = self.find(keys)
        for number, count in enumerate(hits.found):
            self.hits[number] += count
        self.misses += hits.missing
        costs = [seconds] * len(keys) if isinstance(seconds, int | float) else list(seconds)
        before = [self._take(key) for key in keys]  # all of them first, so that none makes room for another
        for place in reversed(range(len(keys))):
            self._turn += 1
            use = before[place] or BlockUse(keys[place], place, 0, self._turn, self._turn, costs[place])
            self._put(0, replace(use, uses=use.uses + 1, last=self._turn, seconds=costs[place]))
        return hits

    def _places(self, keys: Sequence[bytes]) -> list[int]:
        """Return the tier of each block of the run."""
        places = []
        for key in keys:
            number = next((number for number, shelf in enumerate(self._shelves) if key in shelf.uses), None)
            if number is None:
                break
            places.append(number)
        return places

    def _take(self, key: bytes) -> BlockUse | None:
        """Take a block out of its tier, if it is in one."""
        shelf = next((shelf for shelf in self._shelves if key in shelf.uses), None)
        return shelf.take(key) if shelf is not None else None

    def _put(self, number: int, use: BlockUse) -> None:
        """Put a block into a tier. If it is full, a block of the lowest value makes room: possibly this one."""
        while number < len(self._shelves):
            shelf = self._shelves[number]
            shelf.put(use, self.eviction(use, shelf.floor))
            if len(shelf.uses) <= shelf.tier.blocks:
                return
            use = shelf.evict()
            number += 1
        self.lost += 1
