"""Slow ranks: the cost of random noise, detection of ranks that are slower than noise explains, and shares of a batch
for unequal ranks."""

import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import median_low

import numpy as np
import torch.distributed as dist

__all__ = [
    "StragglerDetector", "batch_weights", "expected_slowest", "gather_seconds", "proportional_batches",
]  # fmt: skip


def expected_slowest(mean: float, deviation: float, ranks: int) -> float:
    """Return the expected maximum of the step times of `ranks` ranks, each normal and independent: the time of a
    synchronous step.

    With n ranks it is mean + deviation · eₙ, where eₙ = ∫ x · n · φ(x) · Φ(x)ⁿ⁻¹ dx: e₂ = 1/√π, e₈ = 1.42, e₁₀₂₄ = 3.2.
    So even equal ranks wait for one another. The trapezoidal rule is exact to rounding for such integrands.
    """
    if ranks < 1 or not deviation >= 0:
        raise ValueError(f"{ranks} ranks, deviation = {deviation} s: expected at least 1, and 0 or more")
    step = 1 / 64
    x = np.arange(-12, 12 + step, step)
    below = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x])
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return mean + deviation * float((x * ranks * density * below ** (ranks - 1)).sum() * step)


def gather_seconds(seconds: float, group: dist.ProcessGroup | None = None) -> list[float]:
    """Each rank's own time for this step, in the order of ranks.

    Measure it without waiting for others: from the start of forward to the end of backward's own work. The whole step
    takes equally long on all ranks, since the fast ones wait in the all-reduce.
    """
    everyone = [0.0] * dist.get_world_size(group)
    dist.all_gather_object(everyone, seconds, group=group)
    return everyone


class StragglerDetector:
    """Flags ranks that were slower than `factor` times the median for `patience` steps in a row.

    With noise some rank is slow in most steps, but another one each time; `patience` tells that from a slow machine.
    The median of an even number of ranks is the lower of the two in the middle, so of two ranks the faster is the
    measure.
    """

    def __init__(self, ranks: int, factor: float = 1.1, patience: int = 3) -> None:
        if ranks < 1 or not factor > 1 or patience < 1:
            raise ValueError(f"{ranks} ranks, factor = {factor}, patience = {patience}: expected ≥ 1, > 1 and ≥ 1")
        self.factor = factor
        self.patience = patience
        self.slow_steps = [0] * ranks
        """The number of consecutive steps for which each rank has been slow."""

    def update(self, seconds: Sequence[float]) -> list[int]:
        """Take the times of a step, one per rank, and return the ranks that are flagged now."""
        if len(seconds) != len(self.slow_steps) or not all(0 < duration < math.inf for duration in seconds):
            raise ValueError(f"seconds = {list(seconds)}: expected {len(self.slow_steps)} positive, finite numbers")
        limit = self.factor * median_low(seconds)
        self.slow_steps = [
            steps + 1 if duration > limit else 0 for steps, duration in zip(self.slow_steps, seconds, strict=True)
        ]
        return [rank for rank, steps in enumerate(self.slow_steps) if steps >= self.patience]


def proportional_batches(samples_per_second: Sequence[float], global_batch: int) -> list[int]:
    """Batch size of each rank, proportional to its speed, so that all finish at about the same time.

    They sum to `global_batch`: each rank gets its share rounded down, and the largest remainders one more (the lowest
    rank of equal ones). Every rank gets at least 1, taken from the largest, since it takes part in the all-reduce.
    """
    speeds = list(samples_per_second)
    if not speeds or not all(0 < speed < math.inf for speed in speeds):
        raise ValueError(f"samples_per_second = {speeds}: expected a positive, finite number per rank")
    if global_batch < len(speeds):
        raise ValueError(f"global_batch = {global_batch}: expected at least one sample for each of {len(speeds)} ranks")
    total = sum(map(Fraction, speeds))
    shares = [global_batch * Fraction(speed) / total for speed in speeds]
    batches = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(speeds)), key=lambda rank: (batches[rank] - shares[rank], rank))
    for rank in by_remainder[: global_batch - sum(batches)]:
        batches[rank] += 1
    while 0 in batches:
        batches[batches.index(max(batches))] -= 1
        batches[batches.index(0)] += 1
    return batches


def batch_weights(batches: Sequence[int]) -> list[float]:
    """Return each rank's factor for the mean loss of its batch, so that DDP's mean over ranks is the mean over samples.

    Without them the samples of small batches would count more.
    """
    if not batches or min(batches) < 1:
        raise ValueError(f"batches = {list(batches)}: expected at least one sample per rank")
    return [len(batches) * batch / sum(batches) for batch in batches]
