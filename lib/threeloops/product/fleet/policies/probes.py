"""Startup, readiness and liveness probes as data, and a kubelet's reactions to them over time.

- The startup probe comes first. Until it succeeds, the other two do not run. If it fails too often, the container is
  killed and started again.
- The readiness probe decides whether the replica gets requests. It never restarts anything.
- The liveness probe asks whether the process still works. If it fails too often, the container is killed and restarted.

If a model takes minutes to load and has only a liveness probe, it is killed before it has loaded, again and again. A
liveness probe waits `initial_delay + (failure_threshold - 1) · period` seconds. A startup probe gives a container that
long to start, without making the liveness probe slower afterwards.

A container that exits is restarted at once the first time, then after 10, 20, 40 … 300 seconds (CrashLoopBackOff). Ten
minutes without an exit reset that. Source: Kubernetes' documentation, "Configure Liveness, Readiness and Startup
Probes" and "Pod Lifecycle", whose defaults are the defaults here, and the kubelet's `prober/worker.go`. A kubelet adds
a random delay after its own restart. It is left out here, so the same input gives the same timeline.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from threeloops.units import require_whole

__all__ = ["Kubelet", "Probe", "ProbeEvent", "Probes", "Respond", "probe_timeline"]

Respond = Callable[[str, float], float]
"""`respond(path, age)`: in how many seconds a container of this age, in seconds, answers 200 at this path; infinity if
it does not answer, or answers something else."""

_BACKOFF = 10.0
_LONGEST_BACKOFF = 300.0
_FORGIVEN = 600.0


@dataclass(frozen=True)
class Probe:
    """An HTTP probe of `path`; the names and defaults are Kubernetes', in seconds."""

    path: str = "/health"
    initial_delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    failure_threshold: int = 3
    success_threshold: int = 1

    def __post_init__(self) -> None:
        for name, least in (("initial_delay", 0), ("period", 1e-9), ("timeout", 1e-9)):
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected seconds, {'≥' if not least else '>'} 0")
        require_whole(failure_threshold=self.failure_threshold, success_threshold=self.success_threshold)

    @property
    def patience(self) -> float:
        """Seconds from the container's start to the last of the failures that are allowed in a row."""
        return self._first + (self.failure_threshold - 1) * self.period

    @property
    def _first(self) -> float:
        """The time of the first probe. Ticks come every period, and those within the initial delay are skipped."""
        return math.ceil(self.initial_delay / self.period - 1e-9) * self.period


@dataclass(frozen=True)
class Probes:
    """The probes of a container. Without a readiness probe it gets requests as soon as it has started, ready or not.

    `grace` is the time between SIGTERM and SIGKILL, in which a killed container still exists but is not ready.
    """

    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None
    grace: float = 0.0

    def __post_init__(self) -> None:
        for name in ("startup", "liveness"):
            probe = getattr(self, name)
            if probe is not None and probe.success_threshold != 1:
                raise ValueError(
                    f"success_threshold = {probe.success_threshold} of the {name} probe: Kubernetes admits 1 only"
                )
        if not 0 <= self.grace < math.inf:
            raise ValueError(f"grace = {self.grace!r}: expected seconds, at least 0")


@dataclass(frozen=True)
class ProbeEvent:
    """Something that changed at `at` seconds: the container runs, has "started", is "ready" or "unready", is "killed"
    by a probe, or has "exited" by itself."""

    at: float
    what: Literal["runs", "started", "ready", "unready", "killed", "exited"]
    why: str = ""


@dataclass
class _Worker:
    """A kubelet's state of one probe."""

    probe: Probe
    next: float = 0.0
    result: bool | None = None
    run: int = 0

    def ask(self, respond: Respond, age: float) -> bool | None:
        """True or False once the threshold is reached, None below it."""
        result = respond(self.probe.path, age) <= self.probe.timeout
        self.run = self.run + 1 if result == self.result else 1
        self.result = result
        self.next += self.probe.period
        enough = self.probe.success_threshold if result else self.probe.failure_threshold
        return result if self.run >= enough else None


@dataclass
class Kubelet:
    """One container's life under its probes, as a state machine: call `tick` at `next`, and `exited` when it dies.

    `respond` is asked with the container's age, so a restarted container starts from the beginning.
    """

    probes: Probes
    respond: Respond
    now: float = 0.0
    running_since: float | None = field(default=None, init=False)
    started: bool = field(default=False, init=False)
    ready: bool = field(default=False, init=False)
    restarts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._starts_at = self.now
        self._backoff = 0.0

    @property
    def next(self) -> float:
        """The time at which the container starts or a probe is due next, or infinity if nothing is due."""
        if self.running_since is None:
            return self._starts_at
        return min((self._workers[name].next for name in self._asked()), default=math.inf)

    def tick(self, now: float) -> list[ProbeEvent]:
        """Do everything that is due at `now`, and return the changes."""
        self.now = now
        if self.running_since is None:
            return self._run(now) if now >= self._starts_at else []
        events: list[ProbeEvent] = []
        for name in self._asked():
            worker = self._workers.get(name)
            if worker is None or worker.next > now:
                continue
            since = self.running_since
            verdict = worker.ask(self.respond, now - since)
            if verdict is not None:
                events += self._judge(name, verdict, now)
            if self.running_since is None:
                break
        return events

    def exited(self, now: float, why: str = "the process ended") -> list[ProbeEvent]:
        """Note that the container ended by itself, and return the changes."""
        if self.running_since is None:
            return []
        return [*self._unready(now), ProbeEvent(now, "exited", why), *self._end(now, 0.0)]

    def skip_to(self, now: float) -> None:
        """Skip the probes before `now`. The caller must know that they would change nothing."""
        for worker in self._workers.values():
            missed = math.ceil((now - worker.next) / worker.probe.period - 1e-9)
            worker.next += max(0, missed) * worker.probe.period

    def _asked(self) -> list[str]:
        """The probes that are asked now, in the order in which they are at the same moment."""
        if not self.started:
            return ["startup"] if self.probes.startup else []
        return [name for name in ("readiness", "liveness") if name in self._workers]

    def _run(self, now: float) -> list[ProbeEvent]:
        self.running_since = now
        kinds = {name: getattr(self.probes, name) for name in ("startup", "readiness", "liveness")}
        self._workers = {name: _Worker(probe, now + probe._first) for name, probe in kinds.items() if probe}
        events = [ProbeEvent(now, "runs", f"restart {self.restarts}" if self.restarts else "")]
        return events if self.probes.startup else events + self._start(now)

    def _start(self, now: float) -> list[ProbeEvent]:
        self.started = True
        self.skip_to(now)
        events = [
            ProbeEvent(now, "started", "the startup probe succeeded" if self.probes.startup else "no startup probe")
        ]
        return events if self.probes.readiness else [*events, *self._become_ready(now, "no readiness probe")]

    def _judge(self, name: str, verdict: bool, now: float) -> list[ProbeEvent]:
        probe = self._workers[name].probe
        if name == "readiness":
            if verdict == self.ready:
                return []
            return self._become_ready(now, f"{probe.path} answers") if verdict else self._unready(now, probe)
        if not verdict:
            why = f"the {name} probe failed {probe.failure_threshold} times in a row"
            return [*self._unready(now), ProbeEvent(now, "killed", why), *self._end(now, self.probes.grace)]
        return self._start(now) if name == "startup" else []

    def _become_ready(self, now: float, why: str) -> list[ProbeEvent]:
        self.ready = True
        return [ProbeEvent(now, "ready", why)]

    def _unready(self, now: float, probe: Probe | None = None) -> list[ProbeEvent]:
        if not self.ready:
            return []
        self.ready = False
        why = f"{probe.path} failed {probe.failure_threshold} times in a row" if probe else ""
        return [ProbeEvent(now, "unready", why)]

    def _end(self, now: float, grace: float) -> list[ProbeEvent]:
        assert self.running_since is not None
        if now - self.running_since >= _FORGIVEN:
            self._backoff = 0.0
        self._starts_at = now + grace + self._backoff
        self._backoff = min(_LONGEST_BACKOFF, 2 * self._backoff) if self._backoff else _BACKOFF
        self.running_since = None
        self.started = False
        self.restarts += 1
        return []


def probe_timeline(probes: Probes, respond: Respond, until: float) -> tuple[ProbeEvent, ...]:
    """Return the events of a container in its first `until` seconds.

    >>> loading = lambda path, age: 0.0 if age >= 150 else math.inf
    >>> [event.what for event in probe_timeline(Probes(liveness=Probe(initial_delay=30)), loading, 60)]
    ['runs', 'started', 'ready', 'unready', 'killed', 'runs', 'started', 'ready']
    """
    kubelet = Kubelet(probes, respond)
    events = []
    while kubelet.next <= until:
        events += kubelet.tick(kubelet.next)
    return tuple(events)
