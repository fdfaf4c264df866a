"""Simulate a job that fails, restarts and continues, event by event, and account for its time.

Nodes have independent lifetimes, exponential or Weibull. A node that fails goes into repair, and a hot spare with a
lifetime of its own takes its place. Without a spare the job waits. Closed forms exist for exponential lifetimes and
enough spares (`closed_form`). The simulation also covers early deaths, few spares, and a flush longer than the
interval.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from threeloops.simulation.clock import VirtualClock

__all__ = ["Account", "Job", "simulate"]

_TICK = 2.0**-20
"""Seconds. All times are multiples of it, so sums of floats are exact for 272 years."""

_Activity = Literal["work", "save", "detect", "restart", "idle"]


@dataclass(frozen=True)
class Job:
    """The parameters of a job and its failures. Times are seconds, rounded to about a microsecond.

    Args:
        nodes: how many nodes must all be there.
        node_mtbf: mean lifetime of a node.
        interval: work between two saves.
        save: how long a save stops the work.
        flush: how long after that the checkpoint becomes usable, while work continues. A save waits for the previous
            flush.
        detect: the time from a failure until it is noticed. Nothing useful happens meanwhile.
        restart: the time from there to work, including loading. It begins again if another node fails.
        spares: nodes that stand by, and do not fail. None for as many as needed.
        repair: the time until a failed node becomes a spare.
        shape: the shape of the Weibull distribution of lifetimes. 1 is exponential, and below 1 many nodes die early.
    """

    nodes: int
    node_mtbf: float
    interval: float
    save: float
    restart: float
    flush: float = 0.0
    detect: float = 0.0
    spares: int | None = None
    repair: float = 0.0
    shape: float = 1.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or (self.spares is not None and self.spares < 0):
            raise ValueError(f"{self.nodes} nodes, {self.spares} spares: expected 1 or more, and 0 or more or None")
        if not (0 < self.node_mtbf < math.inf and self.shape > 0 and _TICK <= self.interval < math.inf):
            raise ValueError(
                f"node_mtbf = {self.node_mtbf} s, shape = {self.shape}, interval = {self.interval} s: expected "
                "positive, finite numbers, and an interval of a microsecond or more"
            )
        for name in ("save", "restart", "flush", "detect", "repair"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)} s: expected a finite number, 0 or more")


@dataclass
class Account:
    """The seconds of a run by what they were spent on. They add up to its wall time exactly."""

    useful: float = 0.0
    """Work that is in a usable checkpoint."""
    lost: float = 0.0
    """Work that a failure, or the end of the simulation, destroyed."""
    save: float = 0.0
    detect: float = 0.0
    restart: float = 0.0
    idle: float = 0.0
    """Waiting for a node, or for the flush of the checkpoint before."""
    failures: int = 0
    """The number of node failures."""

    @property
    def seconds(self) -> float:
        return self.useful + self.lost + self.save + self.detect + self.restart + self.idle

    @property
    def useful_share(self) -> float:
        return self.useful / self.seconds

    def __add__(self, other: "Account") -> "Account":
        return Account(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def simulate(job: Job, seconds: float, seed: int = 0) -> Account:
    """Run a job for `seconds`, with new nodes at the start. The same seed gives the same run."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds = {seconds}: expected a positive, finite time")
    return _Simulation(job, seed).run(_ticks(seconds))


def _ticks(seconds: float) -> float:
    return round(seconds / _TICK) * _TICK


class _Simulation:
    """The job is in one activity at a time. A failure makes all that was planned for it void (`_epoch`)."""

    def __init__(self, job: Job, seed: int) -> None:
        self.clock = VirtualClock()
        self.account = Account()
        self._job = job
        self._random = random.Random(seed)
        self._scale = job.node_mtbf / math.gamma(1 + 1 / job.shape)
        self._interval, self._save, self._flush = map(_ticks, (job.interval, job.save, job.flush))
        self._detect, self._restart, self._repair = map(_ticks, (job.detect, job.restart, job.repair))
        self._spares = math.inf if job.spares is None else job.spares
        self._missing = 0
        self._epoch = 0
        self._activity: _Activity = "work"
        self._since = 0.0
        self._unsaved = 0.0
        """Work since the last save."""
        self._flushing = 0.0
        """Work in a checkpoint that is not usable yet."""
        self._flushed_at = 0.0

    def run(self, seconds: float) -> Account:
        for _ in range(self._job.nodes):
            self._new_node()
        self._work()
        self.clock.sleep_until(seconds)
        self._turn_to("idle")
        self.account.lost += self._unsaved + self._flushing
        return self.account

    # What the job does

    def _turn_to(self, activity: _Activity) -> None:
        """End the present activity here, and book its time."""
        now = self.clock.now()
        spent = now - self._since
        if self._activity == "work":
            self._unsaved += spent
        else:
            setattr(self.account, self._activity, getattr(self.account, self._activity) + spent)
        self._activity = activity
        self._since = now

    def _then(self, moment: float, action: Callable[[], None]) -> None:
        """Plan the job's next event, unless a failure comes first."""
        epoch = self._epoch
        self.clock.at(moment, lambda: action() if epoch == self._epoch else None)

    def _work(self) -> None:
        self._turn_to("work")
        self._then(self.clock.now() + self._interval, self._begin_save)

    def _begin_save(self) -> None:
        if self._flushed_at > self.clock.now():
            self._turn_to("idle")
            self._then(self._flushed_at, self._begin_save)
            return
        self._turn_to("save")
        self._then(self.clock.now() + self._save, self._end_save)

    def _end_save(self) -> None:
        self._flushing = self._unsaved
        self._unsaved = 0.0
        self._flushed_at = self.clock.now() + self._flush
        if self._flush:
            self._then(self._flushed_at, self._usable)
        else:
            self._usable()
        self._work()

    def _usable(self) -> None:
        self.account.useful += self._flushing
        self._flushing = 0.0

    # What happens to it

    def _new_node(self) -> None:
        life = self._random.weibullvariate(self._scale, self._job.shape)
        self.clock.at(self.clock.now() + max(_TICK, _ticks(life)), self._fail)

    def _fail(self) -> None:
        self.account.failures += 1
        self._epoch += 1
        self._turn_to("detect")
        self.account.lost += self._unsaved + self._flushing
        self._unsaved = self._flushing = 0.0
        self._flushed_at = self.clock.now()
        if self._job.spares is not None:
            self.clock.at(self.clock.now() + self._repair, self._repaired)
        if self._spares:
            self._spares -= 1
            self._new_node()
        else:
            self._missing += 1
        self._then(self.clock.now() + self._detect, self._detected)

    def _detected(self) -> None:
        if self._missing:
            self._turn_to("idle")
        else:
            self._turn_to("restart")
            self._then(self.clock.now() + self._restart, self._work)

    def _repaired(self) -> None:
        if not self._missing:
            self._spares += 1
            return
        self._missing -= 1
        self._new_node()
        if self._activity == "idle" and not self._missing:  # else it is still detecting
            self._detected()
