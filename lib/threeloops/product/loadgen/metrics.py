"""Metrics that users of a service notice and operators pay for, as vLLM's and SGLang's benchmarks define them:

- TTFT, time to first token: from the intended arrival to the first token.
- ITL, inter-token latency: every gap between consecutive tokens of a request, of all requests together.
- TPOT, time per output token: a request's mean gap, (end − first token) / (tokens − 1).
- end-to-end: from the intended arrival to the last token.
- goodput: requests per second that meet all limits of an SLO. (Zhong et al. 2024, "DistServe", section 2, define it as
  the highest rate at which a given share of requests, such as 90%, does so: `highest_rate`.)

A mean hides what the slowest tenth of the users experience, so there are percentiles, interpolated linearly as in
NumPy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from threeloops.product.request import Finish, Request

__all__ = ["SLO", "Metrics", "Percentiles", "highest_rate", "measure"]


@dataclass(frozen=True)
class Percentiles:
    """The mean and percentiles of some times, in seconds. They are NaN if there are no times."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Percentiles":
        if not samples:
            return cls(math.nan, math.nan, math.nan, math.nan, math.nan)
        return cls(float(np.mean(samples)), *map(float, np.percentile(samples, [50, 90, 95, 99])))


@dataclass(frozen=True)
class SLO:
    """A service-level objective: limits in seconds on each request's TTFT and TPOT, for a share of all requests."""

    ttft: float = math.inf
    tpot: float = math.inf
    share: float = 0.9

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected seconds above 0")
        if not 0 < self.share <= 1:
            raise ValueError(f"share = {self.share!r}: expected a share of requests, above 0 and at most 1")

    def is_met_by(self, request: Request) -> bool:
        """Tell whether a request meets both limits. One that failed, was cancelled, or has not finished does not."""
        finished = request.finish in (Finish.STOP, Finish.LENGTH)
        return finished and _ttft(request) <= self.ttft and _tpot(request) <= self.tpot


@dataclass(frozen=True)
class Metrics:
    """Metrics of all requests of a replay, from the first arrival to the last token."""

    requests: int
    completed: int
    seconds: float
    output_tokens: int
    ttft: Percentiles
    itl: Percentiles
    tpot: Percentiles
    end_to_end: Percentiles
    attainment: float
    """Share of all requests that met the SLO."""
    in_system: float
    """Mean number of requests in the system over time."""

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds

    @property
    def goodput(self) -> float:
        """Requests per second that met the SLO."""
        return self.attainment * self.requests / self.seconds

    @property
    def littles_law(self) -> float:
        """Rate · mean time in the system, which equals `in_system` (Little 1961): a check of the measurement."""
        return self.completed / self.seconds * self.end_to_end.mean


def measure(requests: Sequence[Request], slo: SLO | None = None) -> Metrics:
    """Return the metrics of these requests. Raises ValueError if none of them was completed."""
    completed = [request for request in requests if request.finish in (Finish.STOP, Finish.LENGTH)]
    if not completed:
        raise ValueError(f"{len(requests)} requests, of which none was completed: nothing to measure")
    begin = min(request.arrival for request in requests)
    end = max(request.token_times[-1] for request in requests if request.token_times)
    slo = slo or SLO()
    gaps = [float(gap) for request in completed for gap in np.diff(request.token_times)]
    return Metrics(
        requests=len(requests),
        completed=len(completed),
        seconds=end - begin,
        output_tokens=sum(len(request.output) for request in requests),
        ttft=Percentiles.of([_ttft(request) for request in completed]),
        itl=Percentiles.of(gaps),
        tpot=Percentiles.of([_tpot(request) for request in completed if len(request.output) > 1]),
        end_to_end=Percentiles.of([request.token_times[-1] - request.arrival for request in completed]),
        attainment=sum(map(slo.is_met_by, requests)) / len(requests),
        in_system=_mean_in_system(completed, begin, end),
    )


def highest_rate(
    attainment: Callable[[float], float],
    share: float = 0.9,
    low: float = 0.0,
    high: float = 1.0,
    precision: float = 0.01,
) -> float:
    """DistServe's goodput: the highest rate at which `attainment(rate)` is still `share`, by bisection.

    `high` is doubled until it is too much. `attainment` should fall with the rate: take one trace, compressed in time.
    """
    if not 0 <= low < high < math.inf or not precision > 0:
        raise ValueError(f"low = {low}, high = {high}, precision = {precision}: expected 0 ≤ low < high, precision > 0")
    while attainment(high) >= share:
        low = high
        high = 2 * high
        if high > 1e12:
            raise ValueError(f"at {low:g} requests per second {share:.0%} still meet the SLO: is it a limit at all?")
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if attainment(middle) >= share else (low, middle)
    return low


def _ttft(request: Request) -> float:
    return request.token_times[0] - request.arrival


def _tpot(request: Request) -> float:
    """0 of a single token, which has no gap."""
    gaps = len(request.token_times) - 1
    return (request.token_times[-1] - request.token_times[0]) / gaps if gaps else 0.0


def _mean_in_system(requests: Sequence[Request], begin: float, end: float) -> float:
    """The area under the number in the system, counted at every arrival and departure."""
    changes = sorted(
        [(request.arrival, 1) for request in requests] + [(request.token_times[-1], -1) for request in requests]
    )
    area = 0.0
    inside = 0
    before = begin
    for moment, change in changes:
        area += inside * (moment - before)
        inside += change
        before = moment
    return area / (end - begin) if end > begin else math.nan
