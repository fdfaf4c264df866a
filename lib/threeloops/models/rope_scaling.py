"""Scalings of rotary positions, with which a model reads longer sequences than it was first trained on.

Each class has two parts. `frequencies` takes the frequencies of plain rotary positions, in radians per token, and
returns the scaled ones. `amplitude` multiplies the cosines and sines, so it multiplies attention scores by its square.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["LinearScaling", "Llama3Scaling", "RopeScaling", "YarnScaling", "plain_frequencies", "yarn_amplitude"]


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): every frequency is divided by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        _require_positive(self, "factor")

    @property
    def amplitude(self) -> float:
        return 1.0

    def frequencies(self, plain: Sequence[float], base: float) -> list[float]:
        return [frequency / self.factor for frequency in plain]


@dataclass(frozen=True)
class Llama3Scaling:
    """The scaling of Llama 3.1 (Grattafiori et al. 2024, arXiv:2407.21783).

    The scaling counts how many turns each frequency makes within `original_max_sequence` tokens:

    - at least `high_frequency_factor` turns: the frequency stays as it is.
    - at most `low_frequency_factor` turns: the frequency is divided by `factor`.
    - in between: the result is interpolated linearly between the two.
    """

    factor: float
    original_max_sequence: int
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0

    def __post_init__(self) -> None:
        _require_positive(self, "factor", "original_max_sequence", "low_frequency_factor", "high_frequency_factor")
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor = {self.high_frequency_factor}: expected more than low_frequency_factor = "
                f"{self.low_frequency_factor}"
            )

    @property
    def amplitude(self) -> float:
        return 1.0

    def frequencies(self, plain: Sequence[float], base: float) -> list[float]:
        between = self.high_frequency_factor - self.low_frequency_factor
        scaled = []
        for frequency in plain:
            turns = self.original_max_sequence * frequency / (2 * math.pi)
            unscaled_share = min(max((turns - self.low_frequency_factor) / between, 0), 1)
            scaled.append(frequency * ((1 - unscaled_share) / self.factor + unscaled_share))
        return scaled


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071, section 3).

    The scaling counts how many turns each pair of dimensions makes within `original_max_sequence` tokens:

    - more than `beta_fast` turns: the pair keeps its frequency.
    - fewer than `beta_slow` turns: the frequency is divided by `factor`.
    - in between: the result is interpolated linearly in the pair's number.

    `truncate` rounds both ends of the range in between outwards to whole pairs. `attention_factor` is the amplitude;
    None means the paper's 0.1 · ln(factor) + 1.
    """

    factor: float
    original_max_sequence: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _require_positive(self, "factor", "original_max_sequence", "beta_fast", "beta_slow")
        if self.attention_factor is not None:
            _require_positive(self, "attention_factor")
        if self.beta_fast < self.beta_slow:
            raise ValueError(f"beta_fast = {self.beta_fast}: expected at least beta_slow = {self.beta_slow}")

    @property
    def amplitude(self) -> float:
        return yarn_amplitude(self.factor) if self.attention_factor is None else self.attention_factor

    def frequencies(self, plain: Sequence[float], base: float) -> list[float]:
        first, last = (self._pair(turns, 2 * len(plain), base) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first = math.floor(first)
            last = math.ceil(last)
        # The upper limit counts dimensions, not pairs. Published models were trained with this range, so it stays.
        first = max(first, 0)
        last = min(last, 2 * len(plain) - 1)
        span = last - first or 0.001
        scaled = []
        for pair, frequency in enumerate(plain):
            stretched = min(max((pair - first) / span, 0), 1)
            scaled.append(frequency * (stretched / self.factor + 1 - stretched))
        return scaled

    def _pair(self, turns: float, head_dim: int, base: float) -> float:
        """The pair that makes `turns` turns within the original length, as a fractional number."""
        return head_dim * math.log(self.original_max_sequence / (turns * 2 * math.pi)) / (2 * math.log(base))


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


def plain_frequencies(head_dim: int, base: float) -> list[float]:
    """Return the frequency of every pair of dimensions without scaling, in radians per token, the fastest first."""
    return [base ** (-dimension / head_dim) for dimension in range(0, head_dim, 2)]


def yarn_amplitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's amplitude for a sequence `factor` times as long (equation 22).

    DeepSeek's models multiply the logarithmic term by `weight`.
    """
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _require_positive(scaling: Any, *names: str) -> None:
    values = {field.name: getattr(scaling, field.name) for field in fields(scaling)}
    for name in names:
        value = values[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError(f"{name} = {value!r} in {type(scaling).__name__}: expected a positive number")
