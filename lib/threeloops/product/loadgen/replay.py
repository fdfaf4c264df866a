"""Replay a trace on an engine, on the real clock to measure or on a virtual clock to predict.

The replay is open-loop: an arrival never waits for the engine. If it falls into a step, it is added after the step, and
its latency counts from its intended time. A generator that waits for the server would leave out exactly the requests
that suffer (Tene's "coordinated omission").
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from threeloops.product.batching.engine import Engine
from threeloops.product.batching.simulated import StepShape
from threeloops.product.loadgen.trace import Arrival, requests_of
from threeloops.product.request import Request

__all__ = ["Replay", "ReplayedStep", "replay", "replaying"]


@dataclass(frozen=True)
class ReplayedStep:
    """One step: seconds from the beginning of the trace, the quantities of its cost, and the requests of its chunks."""

    start: float
    end: float
    shape: StepShape
    requests: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class Replay:
    """The result of replaying a trace. Times in `requests` are those of the engine's clock, and the trace began at
    `start`."""

    start: float
    requests: list[Request]
    refused: list[Request] = field(default_factory=list)
    steps: list[ReplayedStep] = field(default_factory=list)


def replay(engine: Engine, arrivals: Sequence[Arrival], vocabulary: int = 256) -> Replay:
    """Run the trace to its end. A request that the engine refuses is in `refused`, with the reason as its error."""
    *_, result = replaying(engine, arrivals, vocabulary)
    return result


def replaying(engine: Engine, arrivals: Sequence[Arrival], vocabulary: int = 256) -> Iterator[Replay]:
    """Run the trace like `replay`, and yield the result so far at the beginning and after every step.

    Replays of several engines can so take turns, each on a clock that stands still meanwhile. Then a processor that
    becomes slower slows all of them alike.
    """
    start = engine.clock.now()
    result = Replay(start, requests_of(arrivals, vocabulary, start))
    yield result
    coming = sorted(result.requests, key=lambda request: request.arrival, reverse=True)
    while coming or engine.requests:
        began = engine.clock.now()
        while coming and coming[-1].arrival <= began:
            request = coming.pop()
            try:
                engine.add(request)
            except ValueError as error:
                request.error = str(error)
                result.refused.append(request)
        engine.scheduler.draining = not coming
        batch = engine.step()
        if batch.chunks:
            names = tuple(chunk.request.id for chunk in batch.chunks)
            ended = engine.clock.now()
            result.steps.append(ReplayedStep(began - start, ended - start, StepShape.of(batch), names))
            yield result
        elif coming:
            engine.clock.sleep_until(min(coming[-1].arrival, engine.scheduler.next_door()))
        elif engine.requests:
            raise RuntimeError(f"{len(engine.requests)} requests are left and no step can be made")
    engine.scheduler.draining = False
