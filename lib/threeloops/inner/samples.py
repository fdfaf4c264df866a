"""Repeated times of one function, and how well their median is known.

The band around the median is computed from the ranks of the samples alone. No normal distribution is assumed, because
run times have a hard floor and a long tail.

Source: order statistics and the binomial distribution, e.g. David & Nagaraja, *Order Statistics*, §7.1.
"""

import statistics
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

CONFIDENCE = 0.95


@dataclass(frozen=True)
class MedianBand:
    """Ranks (1 is the fastest sample) between which the true median lies with probability `coverage`."""

    low_rank: int
    high_rank: int
    coverage: float


def median_band(samples: int, confidence: float = CONFIDENCE) -> MedianBand:
    """The narrowest symmetric pair of ranks that holds the true median with at least `confidence`.

    Each sample lies below the true median with probability 1/2, whatever the distribution; so the number below it is
    binomial, and ranks (r, samples + 1 - r) miss it with probability 2·P(Binomial(samples, 1/2) ≤ r - 1). With fewer
    than six samples even (fastest, slowest) misses it too often for 95%: that pair and its true coverage come back.

    Raises ValueError for no samples or a confidence outside (0, 1).
    """
    if samples < 1:
        raise ValueError(f"samples = {samples}: expected at least one sample; a band needs six for 95%")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: expected a probability between 0 and 1, such as 0.95")

    total = 2**samples
    term = below = 1  # exact integers: comb(samples, rank - 1), and the sum of all binomials up to it
    rank, coverage = 1, max(0.0, 1 - 2 / total)
    while rank + 1 <= (samples + 1) // 2:
        term = term * (samples + 1 - rank) // rank
        below += term
        narrower = 1 - 2 * below / total
        if narrower < confidence:
            break
        rank, coverage = rank + 1, narrower
    return MedianBand(rank, samples + 1 - rank, coverage)


@dataclass(frozen=True)
class Ratio:
    """A quotient of two medians, and the band in which that of the true medians lies.

    Each band of the two misses with at most 5%, so this one holds with at least 90% (six samples or more on each side).
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Samples:
    """Raw times of one function in seconds, in the order in which they were taken."""

    seconds: tuple[float, ...]
    device: str = "cpu"

    def __post_init__(self):
        if not self.seconds:
            raise ValueError("seconds = (): expected at least one time; take more samples")
        wrong = next((value for value in self.seconds if not (isfinite(value) and value >= 0)), None)
        if wrong is not None:
            raise ValueError(f"seconds contains {wrong}: expected finite times ≥ 0; check the clock")

    @cached_property
    def _sorted(self) -> list[float]:
        return sorted(self.seconds)

    @cached_property
    def _band(self) -> MedianBand:
        return median_band(len(self.seconds))

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        """Lower edge of the noise band of the median, seconds."""
        return self._sorted[self._band.low_rank - 1]

    @property
    def high(self) -> float:
        """Upper edge of the noise band of the median, seconds."""
        return self._sorted[self._band.high_rank - 1]

    @property
    def coverage(self) -> float:
        """Probability that [low, high] holds the true median: at least 0.95 from six samples on."""
        return self._band.coverage

    def resolves(self, other: "Samples") -> bool:
        """Whether the two medians really differ: both bands hold with 95% and they do not overlap."""
        if min(self.coverage, other.coverage) < CONFIDENCE:
            return False
        return self.high < other.low or other.high < self.low

    def ratio(self, other: "Samples") -> Ratio:
        """self.median / other.median with its band: how many times longer `self` takes.

        Raises ValueError when `other` is not resolved from zero by its clock.
        """
        if other.low == 0:
            raise ValueError("other.low = 0 s: expected a time above the clock's resolution; repeat the work inside fn")
        return Ratio(self.median / other.median, self.low / other.high, self.high / other.low)

    def to_dict(self) -> dict:
        return {
            "device": self.device,
            "seconds": list(self.seconds),
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "coverage": self.coverage,
        }
