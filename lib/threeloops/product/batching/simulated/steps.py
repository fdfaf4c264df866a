"""The parts of a scheduler's step that determine its cost."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from threeloops.product.request import Batch

__all__ = ["Cost", "StepShape", "padded_together"]

_PADDING = 0.75
"""Sequences are padded together if the shortest has at least this share of the longest one's blocks."""


@dataclass(frozen=True)
class StepShape:
    """The quantities that determine a step's cost: for each chunk (position of its first token, tokens, whether it
    samples)."""

    chunks: tuple[tuple[int, int, bool], ...]

    @classmethod
    def of(cls, batch: Batch) -> "StepShape":
        return cls(tuple((chunk.start, chunk.count + chunk.guesses, chunk.samples) for chunk in batch.chunks))

    @cached_property
    def tokens(self) -> int:
        return sum(count for _, count, _ in self.chunks)

    @cached_property
    def samples(self) -> int:
        """Rows of which the head gives logits."""
        return sum(samples for _, _, samples in self.chunks)

    @cached_property
    def keys(self) -> int:
        """The keys that are read. A chunk's keys are read once, for all of its tokens."""
        return sum(start + count for start, count, _ in self.chunks)

    @cached_property
    def pairs(self) -> int:
        """Pairs of a token and a key that it sees."""
        return sum(count * start + count * (count + 1) // 2 for start, count, _ in self.chunks)


Cost = Callable[[StepShape], float]
"""Seconds of a step."""


def padded_together(rows: Sequence[int], blocks: Sequence[int], *, unpadded: int = 0) -> list[list[int]]:
    """Group the places of sequences that attention computes together: `rows` new tokens each, over `blocks` blocks.

    A group has equally many rows, and tables of about the same length, because all are padded to the longest. Sequences
    with `unpadded` rows need no padding, so they are one group, whatever their lengths.
    """
    alike = defaultdict(list)
    for place, count in enumerate(rows):
        alike[count].append(place)
    groups = []
    for count, members in alike.items():
        if count == unpadded:
            groups.append(members)
            continue
        members.sort(key=lambda place: -blocks[place])
        longest = 0
        for place in members:
            if blocks[place] < _PADDING * longest or not longest:
                groups.append([])
                longest = blocks[place]
            groups[-1].append(place)
    return groups
