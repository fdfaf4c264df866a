"""Demand over a day, as rates: a slow wave with bursts on top, and arrivals drawn from it.

A day has one wave, with its trough at the beginning. A burst rises within minutes, stays, and fades, for example when
somebody's batch of jobs arrives. Published traces of LLM services show both (Wang et al. 2024, "BurstGPT: A Real-world
Workload Dataset to Optimize LLM Serving Systems"). The numbers here are invented.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from threeloops.product.loadgen.trace import Arrival, Lengths

__all__ = ["Demand", "bursty_day"]


@dataclass(frozen=True)
class Demand:
    """Requests per second over time, straight lines between the points (`times` in seconds, `rates`).

    Raises ValueError for times that do not rise from 0, or rates that are negative or not finite.
    """

    times: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(before < after for before, after in zip(self.times, self.times[1:], strict=False))
        if len(self.times) < 2 or len(self.times) != len(self.rates) or self.times[0] != 0 or not rising:
            raise ValueError(
                f"{len(self.times)} times and {len(self.rates)} rates: expected equal numbers, at least two, and "
                "times that rise from 0"
            )
        if not all(0 <= rate < math.inf for rate in self.rates) or not max(self.rates):
            raise ValueError("rates: expected requests per second, none negative, at least one above 0")

    @property
    def seconds(self) -> float:
        return self.times[-1]

    @property
    def peak(self) -> float:
        return max(self.rates)

    @property
    def requests(self) -> float:
        """How many are expected in all: the area under the rates."""
        ends = zip(self.times, self.times[1:], self.rates, self.rates[1:], strict=False)
        return sum((after - before) * (high + low) / 2 for before, after, low, high in ends)

    def rate(self, moment: float) -> float:
        """Requests per second at this moment; 0 before the beginning and after the end."""
        if not 0 <= moment <= self.seconds:
            return 0.0
        place = min(bisect_right(self.times, moment), len(self.times) - 1)
        before = self.times[place - 1]
        after = self.times[place]
        share = (moment - before) / (after - before)
        return (1 - share) * self.rates[place - 1] + share * self.rates[place]

    def scaled(self, *, time: float = 1.0, rate: float = 1.0) -> "Demand":
        """Return the same shape with all times multiplied by `time` and all rates by `rate`."""
        return Demand(tuple(time * moment for moment in self.times), tuple(rate * base for base in self.rates))

    def arrivals(
        self, prompts: Lengths, outputs: Lengths, *, prefixes: int = 0, prefix_length: int = 0, seed: int = 0
    ) -> list[Arrival]:
        """A trace of this demand. The same seed gives the same trace.

        Each prompt begins with one of `prefixes` shared ones, if there are any.
        """
        random = Random(seed)
        arrivals = []
        for number, at in enumerate(self._moments(random), prefixes):
            shared = ((random.randrange(prefixes), prefix_length),) if prefixes and prefix_length else ()
            arrivals.append(Arrival(at, (*shared, (number, prompts(random))), outputs(random)))
        return arrivals

    def _moments(self, random: Random) -> Iterator[float]:
        """A Poisson process of this rate, by thinning one of the peak rate: Lewis and Shedler 1979, "Simulation of
        nonhomogeneous Poisson processes by thinning"."""
        now = 0.0
        while (now := now + random.expovariate(self.peak)) < self.seconds:
            if random.random() * self.peak < self.rate(now):
                yield now


def bursty_day(
    peak: float = 10.0,
    *,
    trough: float = 0.2,
    bursts: int = 4,
    height: float = 1.5,
    seconds: float = 86_400.0,
    seed: int = 0,
) -> Demand:
    """A day whose wave goes from `trough · peak` requests per second up to `peak` and back, with `bursts` on top.

    A burst multiplies the rate by up to `height`, or by a little less. It rises within 1/500 of the day (3 minutes),
    stays for up to 1/50 of it (half an hour), and fades within 1/150. With `seconds` the whole day is compressed.
    """
    if not 0 <= trough <= 1 or not 0 < peak < math.inf:
        raise ValueError(f"peak = {peak!r}, trough = {trough!r}: expected a rate above 0, and a share of it")
    if bursts < 0 or not 1 <= height < math.inf or not 0 < seconds < math.inf:
        raise ValueError(
            f"bursts = {bursts!r}, height = {height!r}, seconds = {seconds!r}: expected at least 0, at least 1, and a "
            "day of more than 0 seconds"
        )
    random = Random(seed)
    shapes = []
    for number in range(bursts):  # one in each part of the day, so that they do not fall together
        begin = (number + random.uniform(0.1, 0.8)) / bursts
        shapes.append((begin, begin + random.uniform(0.005, 0.02), 1 + (height - 1) * random.uniform(0.6, 1.0)))
    corners = {
        corner for begin, end, _ in shapes for corner in (begin, begin + _RISE, end + _RISE, end + _RISE + _FADE)
    }
    places = sorted(corners.intersection(p for p in corners if p < 1) | {step / 288 for step in range(289)})
    rates = []
    for place in places:
        wave = peak * (trough + (1 - trough) * (1 - math.cos(2 * math.pi * place)) / 2)
        rates.append(wave * max([_lift(place, *shape) for shape in shapes], default=1.0))
    return Demand(tuple(place * seconds for place in places), tuple(rates))


_RISE = 1 / 500
_FADE = 1 / 150


def _lift(place: float, begin: float, end: float, height: float) -> float:
    """Return the factor by which a burst multiplies the rate at this part of the day."""
    if place <= begin or place >= end + _RISE + _FADE:
        return 1.0
    rising = (place - begin) / _RISE
    fading = (end + _RISE + _FADE - place) / _FADE
    return 1 + (height - 1) * min(1.0, rising, fading)
