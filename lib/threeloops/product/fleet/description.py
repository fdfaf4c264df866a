"""A fleet as data: its engines, policies, cold start, retries, and planned failures."""

import math
from dataclasses import dataclass
from typing import Literal

from threeloops.product.fleet.policies import Autoscaler, Probe, Probes, Router, least_outstanding
from threeloops.product.fleet.servers import ServerModel

__all__ = ["ColdStart", "Failure", "Fleet", "Retries"]


@dataclass(frozen=True)
class ColdStart:
    """Seconds from asking for a replica to its first request: a node and the image (`pull`, once per replica), the
    weights (`load`) and the first compilations and graphs (`warm_up`), both again after each restart.

    Each replica's own seconds are these times exp of a normal distribution with `spread`. With `answers_health` the
    process answers /health while it loads. Without it, the process answers /health only after loading, like a server
    whose probes share one endpoint.
    """

    pull: float = 0.0
    load: float = 0.0
    warm_up: float = 0.0
    spread: float = 0.0
    answers_health: bool = True

    def __post_init__(self) -> None:
        for name in ("pull", "load", "warm_up", "spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected a number, at least 0")


@dataclass(frozen=True)
class Retries:
    """A retry policy: at most `tries` per request, within a budget. The budget begins at `reserve`, its maximum, gains
    `share` with every new request, and loses 1 with every retry. A retry waits for a random part of
    `backoff · 2^(tries before - 1)` seconds, so that requests that failed together do not return together.
    """

    tries: int = 3
    share: float = 0.1
    reserve: float = 10.0
    backoff: float = 0.1

    def __post_init__(self) -> None:
        if self.tries < 1 or not self.share >= 0 or not self.reserve >= 0 or not 0 <= self.backoff < math.inf:
            raise ValueError(f"{self}: expected at least one try, and nothing negative")


@dataclass(frozen=True)
class Failure:
    """A failure of one ready replica at `at` seconds: number `victim`, counted around the list. Its process ends
    ("crash", and its kubelet restarts it), stops answering ("hang"), or disappears with its node ("node")."""

    at: float
    kind: Literal["crash", "hang", "node"] = "crash"
    victim: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.at < math.inf or self.kind not in ("crash", "hang", "node"):
            raise ValueError(f"{self}: expected seconds from the beginning, and 'crash', 'hang' or 'node'")


@dataclass(frozen=True)
class Fleet:
    """A fleet without its load. `replicas` are ready at the beginning, and without an autoscaler their number stays.

    Args:
        metric: the metric of each ready replica that the autoscaler sees: requests "waiting" for a seat, all that are
            "outstanding", the share of time in which its device was "busy", or the share of its host's "cpu".
        period: seconds between two looks of the autoscaler.
        timeout: seconds after which a try is abandoned, and a request that waits for a replica is refused.
        drain: seconds that a replica has to end its requests before it is removed.
        down_for: seconds for which the router skips a replica that refused or broke a connection (NGINX's
            `fail_timeout`).
        streaming: answers are sent token by token, so a request cannot be tried again after its first token.
        host_seconds: CPU seconds that each step costs its host, which has `host_cores`. The device does the rest.
    """

    model: ServerModel
    replicas: int = 1
    autoscaler: Autoscaler | None = None
    metric: Literal["waiting", "outstanding", "busy", "cpu"] = "outstanding"
    router: Router = least_outstanding
    probes: Probes = Probes(readiness=Probe("/ready", period=5))
    cold_start: ColdStart = ColdStart()
    retries: Retries = Retries()
    failures: tuple[Failure, ...] = ()
    period: float = 15.0
    timeout: float = 300.0
    drain: float = 60.0
    down_for: float = 10.0
    streaming: bool = False
    host_seconds: float = 2e-3
    host_cores: int = 4

    def __post_init__(self) -> None:
        if self.replicas < 0 or (self.autoscaler is None and not self.replicas):
            raise ValueError(f"replicas = {self.replicas}: expected at least one, or an autoscaler that asks for some")
        if self.metric not in ("waiting", "outstanding", "busy", "cpu"):
            raise ValueError(f"metric = {self.metric!r}: expected 'waiting', 'outstanding', 'busy' or 'cpu'")
        for name in ("period", "timeout", "drain"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected seconds above 0")
