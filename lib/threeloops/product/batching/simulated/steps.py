"""The parts of a scheduler's step that determine its cost."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from threeloops.product.request import Batch

__all__ = ["Cost", "StepShape"]


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
