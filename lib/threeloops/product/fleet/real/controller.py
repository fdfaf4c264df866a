"""The control loop of a fleet on this machine: probes, autoscaler and NGINX, in one thread.

It does what Kubernetes does with several controllers. It runs probes, restarts failed replicas, tells NGINX which are
ready, reads metrics, asks the autoscaler, and starts or drains replicas. To stop a replica, it first removes it from
NGINX. It sends SIGTERM only when no worker of NGINX would still send it a request.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from threeloops.product.fleet.policies import Autoscaler, History, Probe, Probes, State
from threeloops.product.fleet.real.nginx import Nginx
from threeloops.product.fleet.real.replicas import Command, Container, scrape
from threeloops.product.fleet.real.waiting import wait_until
from threeloops.product.fleet.record import Life, Sample

__all__ = ["RealFleet"]

_PROBES = Probes(
    startup=Probe("/ready", period=0.25, failure_threshold=480),
    readiness=Probe("/ready", period=0.5, failure_threshold=2),
    liveness=Probe("/health", period=1, timeout=2, failure_threshold=5),
)
"""Probes for a model that loads in seconds on a busy machine: it must start within two minutes."""


@dataclass(eq=False)
class _Member:
    container: Container
    life: Life
    drain_ends: float = math.inf


@dataclass
class RealFleet:
    """Replicas of `command` behind NGINX, from `with` until its end. Seconds count from its start.

    >>> with RealFleet(serve_command("tiny"), folder, replicas=2) as fleet:
    ...     fleet.wait_for(2)
    ...     httpx.post(f"{fleet.url}/v1/completions", json={...})
    ...     fleet.containers[0].kill()      # its requests end with an error, and a new process is started
    """

    command: Command
    folder: Path
    replicas: int = 1
    autoscaler: Autoscaler | None = None
    probes: Probes = _PROBES
    period: float = 15.0
    drain: float = 60.0
    lives: list[Life] = field(default_factory=list, init=False)
    samples: list[Sample] = field(default_factory=list, init=False)

    def __enter__(self) -> "RealFleet":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.desired = self.replicas
        self._began = time.monotonic()
        self._members: list[_Member] = []
        self._history = History()
        self._next_look = self.period
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self.failed: BaseException | None = None
        self._nginx = Nginx(self.folder / "nginx").__enter__()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._nginx.__exit__()
        for member in self._members:
            member.container.drain()
        deadline = time.monotonic() + 10
        for member in self._members:
            member.container.end(max(0.1, deadline - time.monotonic()))
            member.life.gone = self.now()
        if self.failed is not None:
            raise self.failed

    @property
    def url(self) -> str:
        """The URL of NGINX."""
        return self._nginx.url

    @property
    def containers(self) -> list[Container]:
        with self._lock:
            return [member.container for member in self._members]

    @property
    def serving(self) -> tuple[int, ...]:
        """Ports to which NGINX passes requests."""
        return self._nginx.replicas

    @property
    def replica_seconds(self) -> float:
        """The replica-seconds that would be paid for so far."""
        return sum((self.now() if math.isnan(life.gone) else life.gone) - life.asked for life in self.lives)

    def now(self) -> float:
        return time.monotonic() - self._began

    def scale(self, replicas: int) -> None:
        """Ask for this many replicas, like the autoscaler."""
        with self._lock:
            self.desired = replicas

    def wait_for(self, replicas: int, seconds: float = 120.0) -> float:
        """Wait until NGINX passes requests to this many replicas, and return the seconds. Raises TimeoutError with the
        ends of their logs."""
        return self.wait_until(lambda: len(self.serving) == replicas and len(self.containers) == replicas, seconds)

    def wait_until(self, done: Callable[[], bool], seconds: float = 120.0) -> float:
        def why() -> str:
            logs = [
                f"{container.name}: {container.log.read_text(errors='replace')[-400:]}" for container in self.containers
            ]
            return "the fleet did not get there; " + "; ".join(logs)

        return wait_until(lambda: self.failed is not None or done(), seconds, why)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.02):
                self.step()
        except BaseException as error:  # whoever waits must not wait for ever
            self.failed = error

    def step(self) -> None:
        """One turn of the loop."""
        with self._lock:
            self._reconcile()
            self._probe()
            self._route()
            self._let_go()
            if self.now() >= self._next_look:
                self._next_look += self.period
                self._look()

    def _reconcile(self) -> None:
        staying = [
            member for member in self._members if not member.container.draining and member.drain_ends == math.inf
        ]
        for _ in range(self.desired - len(staying)):
            life = Life(f"replica-{len(self.lives)}", self.now())
            self.lives.append(life)
            container = Container(life.replica, self.command, self.folder, self.probes, time.monotonic())
            self._members.append(_Member(container, life))
        order = sorted(staying, key=lambda member: (member.container.ready, -member.life.asked))
        for member in order[: max(0, len(staying) - self.desired)]:
            member.life.drains = self.now()
            member.drain_ends = self.now() + self.drain

    def _probe(self) -> None:
        for member in self._members:
            for event in member.container.tick(time.monotonic()):
                member.life.events.append(replace(event, at=event.at - self._began))
                member.life.restarts += event.what in ("killed", "exited")
                if event.what == "ready" and math.isnan(member.life.ready):
                    member.life.ready = self.now()

    def _route(self) -> None:
        """Tell NGINX who is ready, and then tell those to go who are to go."""
        ready = tuple(m.container.port for m in self._members if m.container.ready and m.drain_ends == math.inf)
        if ready != self._nginx.replicas:
            self._nginx.serve(ready)
        for member in self._members:
            if member.drain_ends < math.inf and not member.container.draining:
                member.container.drain()

    def _let_go(self) -> None:
        for member in list(self._members):
            if member.container.draining and member.container.pid is not None and self.now() > member.drain_ends:
                member.container.kill()
            if member.container.draining and member.container.pid is None:
                member.container.end()
                member.life.gone = self.now()
                self._members.remove(member)

    def _look(self) -> None:
        staying = [member for member in self._members if member.drain_ends == math.inf]
        ready = [member for member in staying if member.container.ready]
        metrics = tuple(scrape(member.container.port) for member in ready)
        readings = [metric for metric in metrics if metric is not None]
        reason = "a fixed number"
        if self.autoscaler is not None:
            state = State(len(staying), metrics, sum(readings), self._history)
            decision = self.autoscaler.decide(self.now(), state)
            self.desired = decision.desired
            self._history = decision.history
            reason = decision.reason
        mean = sum(readings) / len(readings) if readings else math.nan
        starting = len(staying) - len(ready)
        draining = len(self._members) - len(staying)
        self.samples.append(
            Sample(
                self.now(),
                math.nan,
                len(ready),
                starting,
                draining,
                0,
                round(sum(readings)),
                mean,
                self.desired,
                reason,
            )
        )
