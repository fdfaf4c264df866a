"""A fleet of replicas: a day with an autoscaler, and a roll-over from one version to the next, second by second."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from threeloops.figures import ON_LIGHT, figure, palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_day", "draw_roll_over", "roll_over"]

_COLORS = {
    "loading": palette.grey,
    "warming up": palette.yellow,
    "ready": palette.green,
    "draining": palette.orange,
    "gone": "none",
}


class _Moment(Protocol):
    """One moment of a fleet: seconds since midnight, requests per second, replicas, requests."""

    seconds: float
    rate: float
    ready: int
    starting: int
    waiting: float


def draw_day(moments: Sequence[_Moment], seconds_per_request: float, title: str) -> "Figure":
    """Demand in full replicas, replicas that are ready and starting, and below them the queue.

    `seconds_per_request` is how many seconds of a whole replica a request takes: its time in a seat over the seats.
    """
    # A day has 5,760 ticks. Drawing one point per minute, and the corners of the steps, keeps the SVG small.
    minutes = [moments[start : start + 4] for start in range(0, len(moments), 4)]
    times = [minute[0].seconds / 3600 for minute in minutes]
    demand = [minute[0].rate * seconds_per_request for minute in minutes]
    waiting = [max(moment.waiting for moment in minute) for minute in minutes]
    corners = _corners(moments)
    hours = [moment.seconds / 3600 for moment in corners]
    ready = [moment.ready for moment in corners]
    ordered = [moment.ready + moment.starting for moment in corners]
    fig, (fleet, queue) = figure(2, 1, width=9.5, height=4.4, sharex=True, gridspec_kw={"height_ratios": [2.2, 1]})
    fleet.fill_between(times, demand, color=palette.sky, alpha=0.6, lw=0)
    fleet.step(hours, ordered, where="post", color=palette.yellow, lw=1.0)
    fleet.fill_between(hours, ready, ordered, step="post", color=palette.yellow, alpha=0.7, lw=0)
    fleet.step(hours, ready, where="post", color=palette.green, lw=1.4)
    top = 1.35 * max(ordered)
    for place, (name, color) in enumerate(
        (("demand, in full replicas", palette.blue), ("ready", palette.green), ("starting", palette.orange))
    ):
        fleet.text(0.02 + 0.25 * place, 0.9, name, transform=fleet.transAxes, color=color, weight="bold", size=10)
    fleet.set(ylim=(0, top), ylabel="replicas", title=title)
    queue.fill_between(times, waiting, color=palette.vermillion, lw=0)
    if max(waiting) < 1:
        queue.text(0.5, 0.5, "no request waits", transform=queue.transAxes, ha="center", va="center", size=10)
    queue.set(xlim=(0, hours[-1]), ylabel="waiting", xlabel="hour of the day")
    queue.set_ylim(0, max(10.0, 1.1 * max(waiting)))
    queue.set_xticks(range(0, 25, 3))
    return fig


def _corners(moments: Sequence[_Moment]) -> list[_Moment]:
    """Return the first and last moment, and each one at which the number of replicas changes."""
    before = (moments[0], *moments)
    changes = [
        now
        for last, now in zip(before, moments, strict=False)
        if (last.ready, last.starting) != (now.ready, now.starting)
    ]
    return [moments[0], *changes, moments[-1]]


@dataclass
class _RollingReplica:
    """A replica in a roll-over; `since` is the second at which its state began."""

    name: str
    version: int
    state: str = "loading"
    since: int = 0
    running: float = 0.0


@dataclass(frozen=True)
class _RollFrame:
    """One second: (name, version, state, requests) per replica, its probe's answer ("" if not asked), and the queue."""

    second: int
    replicas: tuple[tuple[str, int, str, float], ...]
    probes: tuple[str, ...]
    waiting: float


@dataclass
class _Rolling:
    load: int
    warm_up: int
    hold: int
    period: int
    seats: int
    rate: float
    replicas: list[_RollingReplica] = field(default_factory=list)
    waiting: float = 0.0

    def second(self, now: int) -> _RollFrame:
        """States, probes, and requests, in this order."""
        probes = []
        for replica in self.replicas:
            asked = ""
            if replica.state == "loading" and now - replica.since >= self.load:
                replica.state = "warming up"
                replica.since = now
            if replica.state in ("loading", "warming up") and now % self.period == 0:
                warm = replica.state == "warming up" and now - replica.since >= self.warm_up
                asked = "200" if warm else "503" if replica.state == "warming up" else "refused"
                if warm:
                    replica.state = "ready"
                    replica.since = now
            if replica.state == "draining" and replica.running < 0.5:
                replica.state = "gone"
                replica.since = now
                replica.running = 0.0
            probes.append(asked)
        self._serve()
        rows = tuple((replica.name, replica.version, replica.state, replica.running) for replica in self.replicas)
        return _RollFrame(now, rows, tuple(probes), self.waiting)

    def _serve(self) -> None:
        """Requests leave evenly over `hold` seconds, and the least loaded ready replicas take new ones."""
        for replica in self.replicas:
            replica.running -= (
                replica.running / self.hold
                if replica.state != "draining"
                else min(replica.running, self.seats / self.hold)
            )
        self.waiting += self.rate
        ready = sorted(
            (replica for replica in self.replicas if replica.state == "ready"), key=lambda replica: replica.running
        )
        while self.waiting > 1e-9 and ready and ready[0].running < self.seats:
            taken = min(self.waiting, 0.25, self.seats - ready[0].running)
            ready[0].running += taken
            self.waiting -= taken
            ready.sort(key=lambda replica: replica.running)


def roll_over(
    *, replicas: int, load: int, warm_up: int, hold: int, period: int, seats: int = 16, share: float = 0.65
) -> list[_RollFrame]:
    """A frame per second of a roll-over with one surplus replica and never fewer than `replicas` that are ready.

    `load`, `warm_up`, `hold` (a request in its seat) and `period` (of the readiness probe) are in seconds. On average,
    `share` of the seats of `replicas` are in use.
    """
    fleet = _Rolling(load, warm_up, hold, period, seats, replicas * seats * share / hold)
    fleet.replicas = [_RollingReplica(f"old {n + 1}", 1, "ready", 0, seats * share) for n in range(replicas)]
    return list(_frames(fleet, replicas))


def _frames(fleet: _Rolling, wanted: int) -> Iterator[_RollFrame]:
    now = 0
    while True:
        old = [replica for replica in fleet.replicas if replica.version == 1 and replica.state == "ready"]
        new = [replica for replica in fleet.replicas if replica.version == 2]
        coming = any(replica.state in ("loading", "warming up") for replica in new)
        surplus = len(old) + sum(replica.state == "ready" for replica in new) > wanted
        if surplus and old:
            old[0].state = "draining"
            old[0].since = now
        elif len(new) < wanted and not coming:
            fleet.replicas.append(_RollingReplica(f"new {len(new) + 1}", 2, since=now))
        yield fleet.second(now)
        if len(new) == wanted and not old and all(replica.state in ("ready", "gone") for replica in fleet.replicas):
            return
        now += 1


def draw_roll_over(frame: _RollFrame) -> "Figure":
    """Draw a row per replica: its state as a colour, its requests as a bar, and its readiness probe's answer."""
    fig, axes = figure(width=8.5, height=3.6)
    for row in range(8):
        if row >= len(frame.replicas):
            continue
        name, version, state, running = frame.replicas[row]
        probe = frame.probes[row]
        axes.text(-0.4, row, f"{name}  v{version}", ha="right", va="center", size=10)
        axes.barh([row], [3.4], height=0.72, color=_COLORS[state], edgecolor=palette.grey, lw=0.8)
        ink = ON_LIGHT if state != "gone" else palette.grey
        axes.text(1.7, row, state, ha="center", va="center_baseline", color=ink, size=10)
        axes.barh([row], [running / 4], left=3.9, height=0.5, color=palette.sky)
        if running >= 0.5:
            axes.text(4.0 + running / 4, row, f"{running:.0f}", va="center", size=9)
        if probe:
            color = palette.green if probe == "200" else palette.vermillion
            axes.text(9.3, row, f"/ready: {probe}", va="center", color=color, weight="bold", size=10)
    ready = sum(state == "ready" for _, _, state, _ in frame.replicas)
    axes.text(3.9, -0.85, "requests", color=palette.blue, weight="bold", size=10)
    axes.set_title(f"second {frame.second}: {ready} ready, {frame.waiting:.0f} requests in the queue")
    axes.set(xlim=(-2.2, 11.5), ylim=(7.6, -1.3))
    axes.axis("off")
    return fig
