"""A whole fleet in virtual time: replicas that start slowly, fail and drain, behind a router and an autoscaler.

All events are in one queue (`threeloops.simulation.clock.VirtualClock`), and all randomness comes from one seed, so a
run repeats exactly. Each request ends exactly once, with an answer or with an error.

A replica is paid for from the moment at which it is requested. Its container starts after the pull, loads the model,
and warms up. Only then does it accept connections, and its kubelet notices at the next probe. The router skips replicas
that refuse a connection, because nothing was sent to them. A request that was sent and broken off is tried again only
within the budget for retries, because retries without a budget turn a failure into an outage.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from threeloops.product.fleet.description import Failure, Fleet
from threeloops.product.fleet.policies import History, Load, State, prefix_key
from threeloops.product.fleet.record import FleetRun, Life, Outcome, Sample
from threeloops.product.fleet.replica import Replica
from threeloops.product.loadgen.trace import Arrival, prompt_tokens
from threeloops.product.request import Request, Sampling
from threeloops.simulation.clock import VirtualClock

__all__ = ["simulate"]

_VOCABULARY = 256


def simulate(arrivals: Sequence[Arrival], fleet: Fleet, *, seconds: float = 0.0, seed: int = 0) -> FleetRun:
    """Run a fleet until every request has ended, and for `seconds` at least. The same arguments give the same run."""
    return _Simulation(fleet, seed).run(sorted(arrivals, key=lambda arrival: arrival.at), seconds)


@dataclass(eq=False)
class _Try:
    """One attempt at a request: the server's request and the record's outcome. `at` is None while the router holds
    it."""

    outcome: Outcome
    arrival: Arrival
    request: Request
    key: bytes
    at: Replica | None = None


class _Simulation:
    """The router, the client that tries again, and the loop of the autoscaler; the `Owner` of all replicas."""

    def __init__(self, fleet: Fleet, seed: int):
        self.fleet = fleet
        self.clock = VirtualClock()
        self.random = Random(seed)
        self.replicas: list[Replica] = []  # that are not gone
        self.lives: list[Life] = []
        self.outcomes: list[Outcome] = []
        self.samples: list[Sample] = []
        self.held: OrderedDict[_Try, None] = OrderedDict()  # by the router, while no replica takes them
        self.tries: dict[Request, _Try] = {}
        self.history = History()
        self.desired = fleet.replicas
        self.coming = self.open = self.turn = self.retries = self.refused = 0
        self.seen = 0  # arrivals until the last look
        self.names = count()  # of tries: each is a request of its own
        self.budget = fleet.retries.reserve

    def run(self, arrivals: Sequence[Arrival], seconds: float) -> FleetRun:
        for _ in range(self.fleet.replicas):
            self._ask_for_replica(warm=True)
        for failure in self.fleet.failures:
            self.clock.at(failure.at, lambda failure=failure: self._fail(failure))  # type: ignore[misc]
        self.coming = len(arrivals)
        self._look()
        self._next_arrival(iter(arrivals))
        self.clock.run_until(lambda: not self.coming and not self.open)
        self.clock.sleep_until(seconds)
        for replica in self.replicas:
            replica.look()
        return FleetRun(
            self.clock.now(), tuple(self.outcomes), tuple(self.lives), tuple(self.samples), self.retries, self.refused
        )

    def _next_arrival(self, coming: Iterator[Arrival]) -> None:
        if (arrival := next(coming, None)) is not None:
            self.clock.at(arrival.at, lambda: self._arrive(arrival, coming))

    def _arrive(self, arrival: Arrival, coming: Iterator[Arrival]) -> None:
        self._next_arrival(coming)
        self.coming -= 1
        self.open += 1
        self.budget = min(self.fleet.retries.reserve, self.budget + self.fleet.retries.share)
        outcome = Outcome(arrival.at, arrival.prompt_length, arrival.max_tokens)
        self.outcomes.append(outcome)
        self._try(outcome, arrival)

    def _try(self, outcome: Outcome, arrival: Arrival) -> None:
        reads = self.fleet.model.reads_tokens
        now = self.clock.now()
        tokens = prompt_tokens(arrival, _VOCABULARY) if reads else (0,) * arrival.prompt_length
        key = prefix_key(tokens) if reads else b"%d" % arrival.prompt[0][0]
        sampling = Sampling(max_tokens=arrival.max_tokens)
        request = Request(str(next(self.names)), tokens, sampling, now, arrival.priority, arrival.client)
        attempt = _Try(outcome, arrival, request, key)
        self.tries[request] = attempt
        self.clock.at(now + self.fleet.timeout, lambda: self._time_out(attempt))
        if self.held or not self._dispatch(attempt):
            self.held[attempt] = None

    def _dispatch(self, attempt: _Try) -> bool:
        """Give it to a replica that takes it; False if there is none."""
        able = [replica for replica in self.replicas if replica.takes]
        while able:
            loads = [Load(replica.life.replica, len(replica.requests)) for replica in able]
            replica = able.pop(self.fleet.router(loads, self.turn, attempt.key))
            self.turn += 1
            try:
                replica.give(attempt.request)
            except ConnectionRefusedError:
                self.refused += 1
                self._leave_out(replica)
                continue
            except ValueError as error:
                self._end(attempt, f"refused: {error}")
                return True
            attempt.at = replica
            attempt.outcome.tries += 1
            attempt.outcome.replica = replica.life.replica
            return True
        return False

    def _leave_out(self, replica: Replica) -> None:
        replica.down_until = self.clock.now() + self.fleet.down_for
        self.clock.at(replica.down_until, self.takes_requests)

    def _time_out(self, attempt: _Try) -> None:
        if attempt.request not in self.tries:
            return
        if attempt.at is None:
            del self.held[attempt]
            self._end(attempt, "no replica was ready in time")
        elif attempt.at.take_back(attempt.request):
            self._again(attempt, f"no answer within {self.fleet.timeout:g} s")

    def _again(self, attempt: _Try, error: str) -> None:
        """A try that had been sent failed: the next one, or an error."""
        outcome, retries, now = attempt.outcome, self.fleet.retries, self.clock.now()
        began = bool(attempt.request.token_times) and attempt.request.token_times[0] <= now
        if self.fleet.streaming and began:
            return self._end(attempt, f"{error}, after the first token")
        if outcome.tries >= retries.tries:
            return self._end(attempt, f"{error}, in try {outcome.tries} of {retries.tries}")
        if self.budget < 1:
            return self._end(attempt, f"{error}, and the budget for retries was used up")
        self.budget -= 1
        self.retries += 1
        del self.tries[attempt.request]
        wait = retries.backoff * 2 ** (outcome.tries - 1) * self.random.random()
        self.clock.at(now + wait, lambda: self._try(outcome, attempt.arrival))
        return None

    def _end(self, attempt: _Try, error: str) -> None:
        attempt.outcome.error = error
        attempt.outcome.end = self.clock.now()
        del self.tries[attempt.request]
        self.open -= 1

    def answered(self, request: Request) -> None:
        outcome = self.tries.pop(request).outcome
        outcome.first_token = request.token_times[0]
        outcome.end = request.token_times[-1]
        outcome.output_tokens = request.sampling.max_tokens
        self.open -= 1

    def broken(self, request: Request, error: str) -> None:
        attempt = self.tries[request]
        if attempt.at is not None and not attempt.at.gone:
            self._leave_out(attempt.at)
        self._again(attempt, error)

    def takes_requests(self) -> None:
        """Give held requests to replicas, as long as one accepts them."""
        while self.held and self._dispatch(next(iter(self.held))):
            self.held.popitem(last=False)

    def removed(self, replica: Replica) -> None:
        self.replicas.remove(replica)

    def _ask_for_replica(self, warm: bool = False) -> None:
        spread = self.fleet.cold_start.spread
        slowness = self.random.lognormvariate(0, spread) if spread and not warm else 1.0
        life = Life(f"replica-{len(self.lives)}", self.clock.now())
        self.lives.append(life)
        self.replicas.append(Replica(self, self.fleet, self.clock, life, slowness, warm))

    def _reconcile(self) -> None:
        """Start or stop replicas to reach the desired number. Stop unready ones first, then the least busy, then the
        newest."""
        staying = [replica for replica in self.replicas if not replica.draining]
        for _ in range(self.desired - len(staying)):
            self._ask_for_replica()
        places = {replica: place for place, replica in enumerate(staying)}
        order = sorted(staying, key=lambda replica: (replica.kubelet.ready, len(replica.requests), -places[replica]))
        for replica in order[: max(0, len(staying) - self.desired)]:
            replica.drain()

    def _fail(self, failure: Failure) -> None:
        ready = [
            replica
            for replica in self.replicas
            if replica.kubelet.ready and replica.server is not None and not replica.hangs
        ]
        if not ready:
            return
        victim = ready[failure.victim % len(ready)]
        if failure.kind == "hang":
            victim.hang()
        elif failure.kind == "crash":
            victim.crash("its process was killed")
        else:
            victim.remove("its node was lost")
            self._reconcile()  # the Deployment's controller does not wait for the autoscaler

    def _look(self) -> None:
        """Let the autoscaler look, once per period."""
        now = self.clock.now()
        fleet = self.fleet
        self.clock.at(now + fleet.period, self._look)
        staying = [replica for replica in self.replicas if not replica.draining]
        looked = {replica: replica.look() for replica in list(self.replicas)}
        staying = [replica for replica in staying if not replica.gone]
        ready = [replica for replica in staying if replica.kubelet.ready]
        metrics = tuple(self._metric(replica, *looked[replica]) for replica in ready)
        waiting = len(self.held) + sum(replica.waiting for replica in self.replicas)
        outstanding = len(self.held) + sum(len(replica.requests) for replica in self.replicas)
        reason = "a fixed number"
        if fleet.autoscaler is not None:
            total = outstanding if fleet.autoscaler.minimum == 0 or fleet.metric == "outstanding" else waiting
            decision = fleet.autoscaler.decide(now, State(len(staying), metrics, total, self.history))
            self.desired = decision.desired
            self.history = decision.history
            reason = decision.reason
        readings = [metric for metric in metrics if metric is not None]
        self.samples.append(
            Sample(
                now,
                (len(self.outcomes) - self.seen) / fleet.period,
                len(ready),
                len(staying) - len(ready),
                len(self.replicas) - len(staying),
                waiting,
                outstanding - waiting,
                sum(readings) / len(readings) if readings else math.nan,
                self.desired,
                reason,
            )
        )
        self.seen = len(self.outcomes)
        self._reconcile()

    def _metric(self, replica: Replica, busy: float, steps: float) -> float | None:
        if replica.hangs or replica.server is None:
            return None
        if self.fleet.metric == "waiting":
            return replica.waiting
        if self.fleet.metric == "outstanding":
            return len(replica.requests)
        if self.fleet.metric == "busy":
            return busy / self.fleet.period
        return min(1.0, steps * self.fleet.host_seconds / self.fleet.period / self.fleet.host_cores)
