"""One replica in virtual time: its container under a kubelet, its engine, and its requests.

It reports to its owner when a request is answered or broken off, when it accepts requests, and when it is gone. The
owner decides what happens then.
"""

import math
from typing import Protocol

from threeloops.product.fleet.description import Fleet
from threeloops.product.fleet.policies import Kubelet, ProbeEvent
from threeloops.product.fleet.record import Life
from threeloops.product.fleet.servers import Server
from threeloops.product.request import Request
from threeloops.simulation.clock import VirtualClock

__all__ = ["Owner", "Replica"]

_WARM = 1e6
"""The age in seconds of a replica that exists when the simulation begins."""


class Owner(Protocol):
    def answered(self, request: Request) -> None: ...

    def broken(self, request: Request, error: str) -> None: ...

    def takes_requests(self) -> None: ...

    def removed(self, replica: "Replica") -> None: ...


class Replica:
    """A replica. `slowness` multiplies its cold start. A `warm` one has started already."""

    def __init__(self, owner: Owner, fleet: Fleet, clock: VirtualClock, life: Life, slowness: float, warm: bool):
        self.life = life
        self.requests = dict[Request, None]()  # in the order in which they came
        self.draining = self.gone = self.hangs = False
        self.down_until = -math.inf  # for the router
        self.server: Server | None = None  # None while nothing listens
        self._owner = owner
        self._fleet = fleet
        self._clock = clock
        self._slowness = slowness
        self._loaded = math.inf
        self._spent = (0.0, 0.0)  # busy seconds and steps of the containers before this one
        self._looked = (0.0, 0.0)
        self._planned = math.inf
        pull = 0.0 if warm else slowness * fleet.cold_start.pull
        self.kubelet = Kubelet(fleet.probes, self._respond, clock.now() + (-_WARM if warm else pull))
        if warm:
            self._loaded = -math.inf
            self.kubelet.tick(self.kubelet.next)
            while not self.kubelet.ready:
                self.kubelet.tick(self.kubelet.next)
            self.kubelet.skip_to(clock.now())
            self.server = fleet.model(clock.now())
            life.ready = clock.now()
        else:
            self._plan_tick()

    @property
    def takes(self) -> bool:
        """Whether the router would give it a request. If the process has just died, the router may not know it yet."""
        return self.kubelet.ready and not self.draining and self.down_until <= self._clock.now()

    @property
    def waiting(self) -> int:
        return self.server.waiting if self.server is not None else 0

    def give(self, request: Request) -> None:
        """Take a request. Raises ValueError if it can never run, and ConnectionRefusedError while nothing listens."""
        if self.server is None:
            raise ConnectionRefusedError(f"{self.life.replica} does not listen")
        self.collect()
        self.server.add(self._clock.now(), request)
        self.requests[request] = None
        self._plan()

    def take_back(self, request: Request) -> bool:
        """Cancel a request that nobody waits for any more. Returns False if it was answered at this very moment."""
        self.collect()
        if request not in self.requests:
            return False
        del self.requests[request]
        if self.server is not None and not self.hangs:
            self.server.cancel(self._clock.now(), request)
            self._plan()
        self._remove_if_drained()
        return True

    def collect(self) -> None:
        """Hand over the answers that are there."""
        if self.server is not None and not self.hangs:
            for request in self.server.advance(self._clock.now()):
                if request in self.requests:
                    del self.requests[request]
                    self._owner.answered(request)
            self._remove_if_drained()

    def look(self) -> tuple[float, float]:
        """Busy seconds and steps since the last look."""
        self.collect()
        now = self._spent
        if self.server is not None:
            now = (now[0] + self.server.busy, now[1] + self.server.steps)
        before = self._looked
        self._looked = now
        self.life.busy = now[0]
        return now[0] - before[0], now[1] - before[1]

    def drain(self) -> None:
        """Accept no more requests, finish the current ones, and end. Requests that remain after the limit are broken
        off."""
        if self.draining:
            return
        self.draining, self.life.drains = True, self._clock.now()
        self._clock.at(self._clock.now() + self._fleet.drain, lambda: self.remove("the time to drain was over"))
        self._remove_if_drained()

    def remove(self, why: str) -> None:
        if not self.gone:
            self.gone, self.life.gone = True, self._clock.now()
            self._stop(why)
            self._owner.removed(self)

    def crash(self, why: str) -> None:
        """End the process; the kubelet then starts another."""
        self._handle(self.kubelet.exited(self._clock.now(), why))
        self._plan_tick()

    def hang(self) -> None:
        """Stop answering, although the process stays: only a probe can find out."""
        self.collect()
        self.hangs = True
        self.kubelet.skip_to(self._clock.now())
        self._plan_tick()

    def _remove_if_drained(self) -> None:
        if self.draining and not self.requests:
            self.remove("drained")

    def _plan(self) -> None:
        """Come back when the engine has something new."""
        moment = self.server.next if self.server is not None and not self.hangs else math.inf
        if moment != self._planned:
            self._planned = moment
            if moment < math.inf:
                self._clock.at(moment, lambda: self._wake(moment))

    def _wake(self, moment: float) -> None:
        if self._planned == moment:
            self._planned = math.inf
            self.collect()
            self._plan()

    def _respond(self, path: str, age: float) -> float:
        loading = self._loaded > self.kubelet.now and not (path == "/health" and self._fleet.cold_start.answers_health)
        return math.inf if self.hangs or loading else 0.0

    def _plan_tick(self) -> None:
        """Plan the kubelet's next tick, unless its probes can only repeat their results."""
        settled = self.kubelet.ready and self._loaded <= self._clock.now() and not self.hangs
        moment = self.kubelet.next
        if moment < math.inf and not settled:
            self._clock.at(max(moment, self._clock.now()), lambda: self._tick(moment))

    def _tick(self, moment: float) -> None:
        if self.gone or self.kubelet.next != moment:
            return
        self._handle(self.kubelet.tick(self._clock.now()))
        self._plan_tick()

    def _handle(self, events: list[ProbeEvent]) -> None:
        for event in events:
            self.life.events.append(event)
            if event.what == "runs":
                self._load()
            elif event.what == "ready":
                self.life.ready = self._clock.now() if math.isnan(self.life.ready) else self.life.ready
                self._owner.takes_requests()
            elif event.what in ("killed", "exited"):
                self.life.restarts += 1
                self._stop(event.why)
                self._remove_if_drained()

    def _load(self) -> None:
        start = self._fleet.cold_start
        self.hangs = False
        self._loaded = loaded = self._clock.now() + self._slowness * (start.load + start.warm_up)
        self._clock.at(loaded, lambda: self._listen(loaded))

    def _listen(self, loaded: float) -> None:
        if not self.gone and self._loaded == loaded:
            self.server = self._fleet.model(self._clock.now())
            self.down_until = -math.inf
            if self.takes:
                self._owner.takes_requests()

    def _stop(self, why: str) -> None:
        """End the process."""
        self.look()
        self._spent = self._looked
        self._loaded = math.inf
        self._planned = math.inf
        self.server = None
        self.hangs = False
        broken = list(self.requests)
        self.requests = {}
        for request in broken:
            self._owner.broken(request, f"{self.life.replica} broke off: {why}")
