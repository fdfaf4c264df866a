"""A day of a fleet as a flow: the number of replicas that the autoscaler would choose, without single requests.

`simulate` follows every request, which takes a minute of computing per million requests. Replica-hours depend only on
rates, so here requests are a fluid. Between two looks of the autoscaler they arrive at the demand's rate, the replicas
complete as many as they can, and the rest waits. By Little's law a replica that gets λ requests per second has λ·T
requests at a time, where T is the time that a request takes at that load. The autoscaler and its period are the same.
Failures, probes, retries and chance are left out.
"""

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from threeloops.product.fleet.demand import Demand
from threeloops.product.fleet.policies import Autoscaler, History, State
from threeloops.product.fleet.servers import SharedModel

__all__ = ["Flow", "flow"]


@dataclass(frozen=True)
class Flow:
    """A column for each look of the autoscaler: seconds, requests per second, ready replicas, those that start, and
    requests without a seat."""

    period: float
    at: tuple[float, ...]
    demand: tuple[float, ...]
    ready: tuple[int, ...]
    starting: tuple[int, ...]
    waiting: tuple[float, ...]

    @property
    def replica_seconds(self) -> float:
        """The replica-seconds that are paid for. Replicas that start cost as much as those that serve."""
        return self.period * (sum(self.ready) + sum(self.starting))


def flow(
    demand: Demand,
    model: SharedModel,
    prompt: float,
    output: float,
    autoscaler: Autoscaler,
    *,
    cold_start: float = 0.0,
    replicas: int | None = None,
    period: float = 15.0,
) -> Flow:
    """Compute the day of a fleet of replicas of `model`, for requests with these mean numbers of tokens.

    Args:
        autoscaler: its metric is the number of outstanding requests per replica.
        cold_start: seconds from asking for a replica until it accepts requests.
        replicas: replicas that are ready at the beginning. By default as many as the first rate needs at the
            autoscaler's target.
    """
    rates = [running / _seconds(model, running, prompt, output) for running in range(1, model.seats + 1)]
    if replicas is None:
        replicas = autoscaler.minimum
        while replicas < autoscaler.maximum and _running(rates, demand.rates[0] / max(1, replicas)) > autoscaler.target:
            replicas += 1
    ready = replicas
    waiting = 0.0
    history = History()
    coming: deque[tuple[float, int]] = deque()  # when so many will be ready
    columns: list[tuple[float, float, int, int, float]] = []
    for look in range(math.ceil(demand.seconds / period)):
        now = look * period
        while coming and coming[0][0] <= now:
            ready += coming.popleft()[1]
        rate = demand.rate(now)
        offered = rate + waiting / period
        done = min(offered, ready * rates[-1])
        waiting = max(0.0, (offered - done) * period)
        metric = _running(rates, done / ready) + waiting / ready if ready else 0.0
        starting = sum(count for _, count in coming)
        columns.append((now, rate, ready, starting, waiting))
        total = metric * ready if ready else offered * period
        decision = autoscaler.decide(now, State(ready + starting, (metric,) * ready, total, history))
        history = decision.history
        change = decision.desired - ready - starting
        if change > 0:
            coming.append((now + cold_start, change))
        while change < 0:  # the youngest go first, as those that start do in the simulation
            if coming:
                at, count = coming.pop()
                gone = min(count, -change)
                if count > gone:
                    coming.append((at, count - gone))
            else:
                gone = min(ready, -change)
                ready -= gone
            change += gone
    return Flow(
        period,
        tuple(at for at, *_ in columns),
        tuple(rate for _, rate, *_ in columns),
        tuple(ready for _, _, ready, _, _ in columns),
        tuple(starting for *_, starting, _ in columns),
        tuple(waiting for *_, waiting in columns),
    )


def _seconds(model: SharedModel, running: int, prompt: float, output: float) -> float:
    """Return the time of one of `running` requests, whose prompts stall each other."""
    return output * model.step_seconds[running - 1] + running * prompt * model.prompt_seconds


def _running(rates: list[float], rate: float) -> float:
    """How many requests are on a replica that answers this many per second; all seats if it can do no more."""
    running = bisect_right(rates, rate)
    if running == len(rates):
        return float(running)
    below = rates[running - 1] if running else 0.0
    return running + (rate - below) / (rates[running] - below)
