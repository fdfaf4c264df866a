"""A service made of a reader's own pieces, in virtual time: limits, batches, streams, readers who leave, and a drain.

The end of lab 17 runs it.
"""

import asyncio
import math
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threeloops.figures import figure, palette
from threeloops.simulation.event_loop import now, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Served", "draw_served", "serve"]

_SECONDS = 20
_DRAIN = 18.0
_DEADLINE = 0.5
_PATIENCE = 1.0
_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, math.inf)
_COLORS = {
    "answered": palette.green,
    "429: over its own limit": palette.sky,
    "503: the service is full": palette.orange,
    "503: it drains": palette.grey,
    "gave up after 1 s": palette.vermillion,
}


@dataclass(frozen=True)
class _Load:
    """The service's measurements of itself, with the fields of lab 17's `Load`."""

    seats: int
    running: int
    places: int
    queued: int
    per_second: float


@dataclass
class Served:
    """Outcomes of the requests of one replica, as (moment, outcome), and seconds to each first token."""

    outcomes: list[tuple[float, str]] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    computed: int = 0

    def counts(self) -> Counter[str]:
        return Counter(outcome for _, outcome in self.outcomes)

    def histogram(self) -> dict[float, int]:
        """Return the cumulative counts of the seconds to the first token."""
        return {bound: sum(seconds <= bound for seconds in self.first_token) for bound in _BOUNDS}


def serve(pieces: Any, model: Any, *, limits: bool, seed: int = 1) -> Served:
    """Run a replica for 20 s of virtual time: 60 requests per second, 400 of them from second 5 to 10.

    One client sends 60 more per second and may send 10. Every twentieth reader leaves after its first token. From
    second 18 on the replica drains. Without `limits`, every request is accepted.

    Args:
        pieces: has `TokenBucket`, `admit`, `status`, `stream` and `Server`, as lab 17 defines them.
        model: answers a list of prompts, and blocks its caller.
    """
    served: Served = run(_Replica(pieces, model, limits, seed).run)
    served.computed = sum(len(prompts) for _, prompts in model.calls)
    return served


class _Replica:
    def __init__(self, pieces: Any, model: Any, limits: bool, seed: int) -> None:
        self.pieces = pieces
        self.model = model
        self.limits = limits
        self.random = random.Random(seed)
        self.served = Served()
        self.buckets: dict[str, Any] = {}
        self.inside = 0
        self.finished: deque[float] = deque(maxlen=50)

    async def run(self) -> Served:
        self.server = self.pieces.Server(self.model, 16, 0.010)
        clients: list[Coroutine[Any, Any, None]] = []
        for rate, name in ((60.0, "many"), (60.0, "greedy")):
            at = 0.0
            while True:
                at += self.random.expovariate(400.0 if name == "many" and 5 <= at < 10 else rate)
                if at > _SECONDS:
                    break
                client = name if name == "greedy" else f"client {self.random.randrange(40)}"
                clients.append(self.client(len(clients), at, client))
        await asyncio.gather(*clients)
        return self.served

    async def client(self, number: int, moment: float, name: str) -> None:
        await asyncio.sleep(moment)
        refused = self.refusal(name) if self.limits or now() >= _DRAIN else ""
        if refused:
            self.served.outcomes.append((moment, refused))
            return
        self.inside += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await self.server.handle(f"r{number}")
        except TimeoutError:
            self.served.outcomes.append((moment, "gave up after 1 s"))
            return
        finally:
            self.inside -= 1
        self.finished.append(now())
        await self.read(answer, moment, leaves=number % 20 == 0)
        self.served.outcomes.append((moment, "answered"))

    def refusal(self, name: str) -> str:
        """Return why a request that arrives now is refused, or nothing."""
        if self.pieces.status("/ready", True, False, now() >= _DRAIN) != 200:
            return "503: it drains"
        if name not in self.buckets:
            self.buckets[name] = self.pieces.TokenBucket(10.0, 40.0)
        wait = self.buckets[name].take(1.0, now())
        span = self.finished[-1] - self.finished[0] if len(self.finished) == 50 else 0.0
        running = min(self.inside, 16)
        speed = 49 / span if span else 0.0
        load = _Load(16, running, 256, self.inside - running, speed)
        status, _ = self.pieces.admit(load, _DEADLINE, wait)
        reasons = {200: "", 429: "429: over its own limit"}
        return reasons.get(status, "503: the service is full")

    async def read(self, answer: str, moment: float, leaves: bool) -> None:
        texts = self.pieces.stream(_words(answer), 4, 1.0)
        first = math.nan
        async for _ in texts:
            first = now() - moment if math.isnan(first) else first
            if leaves:
                break
        await texts.aclose()
        self.served.first_token.append(first)


async def _words(answer: str) -> AsyncIterator[str]:
    for word in answer.split():
        await asyncio.sleep(0.010)
        yield word


def draw_served(runs: Sequence[tuple[str, Served]]) -> "Figure":
    """Draw what became of the requests that arrived in each half second, one panel per run."""
    fig, panels = figure(len(runs), 1, width=9.5, height=2.2 * len(runs), sharex=True, sharey=True)
    places = [place / 2 for place in range(2 * _SECONDS)]
    for axes, (title, served) in zip(panels, runs, strict=True):
        bottom = [0.0] * len(places)
        for outcome, color in _COLORS.items():
            counts = Counter(int(2 * moment) for moment, name in served.outcomes if name == outcome)
            heights = [2.0 * counts[place] for place in range(len(places))]
            axes.bar(places, heights, width=0.5, align="edge", bottom=bottom, color=color, lw=0)
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axes.set(ylabel="per second", xlim=(0, _SECONDS))
        axes.set_title(title, loc="left", size=10)
    for place, (outcome, color) in enumerate(_COLORS.items()):
        panels[0].text(
            0.99, 0.92 - 0.13 * place, outcome, color=color, ha="right", va="top", transform=panels[0].transAxes, size=9
        )
    panels[-1].set_xlabel("moment of arrival (s)")
    return fig
