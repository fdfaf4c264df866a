"""How the steps of a real engine spread around their expected times."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

__all__ = ["Spread"]

_KINDS = 5
"""Short steps spread several times as much as long ones, relative to their times, so they are kept apart."""
_STRETCH = 100
"""Steps that are drawn in a row, on average. A busy processor stays slow for tens of steps."""


@dataclass(frozen=True, repr=False)
class Spread:
    """Recorded steps, in their order: the seconds that were `expected` of each, and its time relative to them."""

    expected: tuple[float, ...]
    ratios: tuple[float, ...]

    def draws(self, seed: int) -> Callable[[float], float]:
        """Return a function that draws the time of a step, given its expected time, both in seconds.

        A draw takes the ratio of a recorded step of about that length. Draws come in stretches of the recording, whose
        beginnings the seed chooses: one by one, they would average out within a request, while a real processor is slow
        for many steps in a row (Politis and Romano 1994, "The Stationary Bootstrap"). Each kind of length has
        stretches of its own, because the mean may be wrong for one kind while an engine is mostly idle, and right for
        the others.
        """
        random = Random(seed)
        places = [random.randrange(len(ratios)) for ratios in self._by_kind]

        def draw(expected: float) -> float:
            kind = bisect_right(self._limits, expected)
            ratios = self._by_kind[kind]
            place = places[kind]
            jumps = random.random() < 1 / _STRETCH
            places[kind] = random.randrange(len(ratios)) if jumps else (place + 1) % len(ratios)
            return expected * ratios[place]

        return draw

    def quantile(self, share: float) -> float:
        """Return the ratio that this share of all recorded steps does not exceed."""
        return float(np.quantile(self.ratios, share))

    @cached_property
    def _limits(self) -> list[float]:
        """The expected times that part the kinds, each of which has equally many steps."""
        return np.unique(np.quantile(self.expected, np.arange(1, _KINDS) / _KINDS)).tolist()

    @cached_property
    def _by_kind(self) -> list[list[float]]:
        """The ratios of each kind, in their order. A kind without steps has those of all."""
        ratios = np.array(self.ratios)
        kinds = np.searchsorted(self._limits, self.expected, side="right")
        of_kinds = (ratios[kinds == kind] for kind in range(len(self._limits) + 1))
        return [(of_kind if len(of_kind) else ratios).tolist() for of_kind in of_kinds]
