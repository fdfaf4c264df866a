"""The record of a fleet's run: every request, every replica's life, and a sample at each look of the autoscaler.

`FleetRun.columns()` has the data for a picture of a day, and `p95` the latencies that its users noticed.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from threeloops.product.fleet.policies.probes import ProbeEvent
from threeloops.product.loadgen.metrics import SLO, Percentiles

__all__ = ["FleetRun", "Life", "Outcome", "Sample"]


@dataclass
class Outcome:
    """One request, from its arrival to its answer or its error. Times are seconds, and NaN if the event never came.

    `tries` counts the replicas that got it, and `replica` names the last.
    """

    arrival: float
    prompt_tokens: int
    max_tokens: int
    tries: int = 0
    replica: str = ""
    first_token: float = math.nan
    end: float = math.nan
    output_tokens: int = 0
    error: str = ""

    @property
    def answered(self) -> bool:
        return not self.error and self.end == self.end

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds."""
        return self.first_token - self.arrival

    @property
    def seconds(self) -> float:
        """The time from the arrival to the last token."""
        return self.end - self.arrival

    def meets(self, slo: SLO) -> bool:
        """Tell whether the request met the SLO. A request that failed meets none."""
        if not self.answered:
            return False
        gaps = self.output_tokens - 1
        return self.ttft <= slo.ttft and (not gaps or (self.end - self.first_token) / gaps <= slo.tpot)


@dataclass
class Life:
    """A replica, paid for from `asked` to `gone`. `ready` is when it first got requests. NaN stands for an event that
    never came."""

    replica: str
    asked: float
    ready: float = math.nan
    drains: float = math.nan
    gone: float = math.nan
    restarts: int = 0
    busy: float = 0.0
    """Seconds in which its device computed."""
    events: list[ProbeEvent] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """The autoscaler's view of the fleet at `at`, in seconds, and its decision.

    `demand` is the number of arrivals per second since the previous sample. `waiting` counts requests without a seat,
    including those that the router holds. `running` counts all other unanswered requests. `metric` is the mean over the
    ready replicas.
    """

    at: float
    demand: float
    ready: int
    starting: int
    draining: int
    waiting: int
    running: int
    metric: float
    desired: int
    reason: str


@dataclass(frozen=True)
class FleetRun:
    """The whole record, of `seconds` in virtual time or on the wall's clock."""

    seconds: float
    requests: tuple[Outcome, ...]
    lives: tuple[Life, ...]
    samples: tuple[Sample, ...]
    retries: int = 0
    refused: int = 0
    """Connections that a replica refused, so that the router went on to another."""

    @cached_property
    def answered(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.requests if outcome.answered)

    @property
    def errors(self) -> Counter[str]:
        return Counter(outcome.error for outcome in self.requests if outcome.error)

    @property
    def output_tokens(self) -> int:
        """Output tokens of answered requests. The tokens of a failed try are paid for but not served."""
        return sum(outcome.output_tokens for outcome in self.answered)

    @property
    def replica_seconds(self) -> float:
        """The replica-seconds that are paid for. Replicas that pull, load or drain cost as much as those that serve."""
        return sum((self.seconds if math.isnan(life.gone) else life.gone) - life.asked for life in self.lives)

    @property
    def busy_seconds(self) -> float:
        return sum(life.busy for life in self.lives)

    @property
    def changes(self) -> list[Sample]:
        """The samples at which the autoscaler changed its mind."""
        return [
            now for before, now in zip(self.samples, self.samples[1:], strict=False) if now.desired != before.desired
        ]

    @property
    def reversals(self) -> int:
        """How often it turned from scaling up to scaling down, or back: a measure of oscillation."""
        wanted = [sample.desired for sample in self.samples]
        steps = [now - before for before, now in zip(wanted, wanted[1:], strict=False) if now != before]
        return sum(before * now < 0 for before, now in zip(steps, steps[1:], strict=False))

    @cached_property
    def ttft(self) -> Percentiles:
        return Percentiles.of([outcome.ttft for outcome in self.answered])

    @cached_property
    def end_to_end(self) -> Percentiles:
        return Percentiles.of([outcome.seconds for outcome in self.answered])

    def p95(self, width: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The 95th percentile of the time to first token over time. Returns the middles of windows of `width` seconds,
        and for each window the percentile of the requests that arrived in it, or NaN if none of them was answered. By
        default a window is 1/96 of the run, which is a quarter of an hour of a day."""
        width = width or self.seconds / 96
        edges = np.arange(0.0, self.seconds + width, width)
        places = np.digitize([outcome.arrival for outcome in self.answered], edges) - 1
        ttft = np.array([outcome.ttft for outcome in self.answered])
        windows = [ttft[places == place] for place in range(len(edges) - 1)]
        percentiles = [float(np.percentile(window, 95)) if len(window) else math.nan for window in windows]
        return edges[:-1] + width / 2, np.array(percentiles)

    def attainment(self, slo: SLO) -> float:
        """Share of all requests that met the SLO."""
        return sum(outcome.meets(slo) for outcome in self.requests) / len(self.requests) if self.requests else math.nan

    def columns(self) -> dict[str, np.ndarray]:
        """The samples' numbers, a column for each of their fields."""
        names = ("at", "demand", "ready", "starting", "draining", "waiting", "running", "metric", "desired")
        return {name: np.array([getattr(sample, name) for sample in self.samples], dtype=float) for name in names}
