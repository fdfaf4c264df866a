"""An input pipeline as data, and a simulator that computes its trace.

A sample passes the stages in order. A stage works on as many samples at once as it has workers. A finished sample stays
with its worker until the queue behind the stage has room, and samples leave a stage in the order in which they entered.
That fixed order makes the simulation a recurrence over samples and stages, without events or randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Interval", "Stage", "Trace", "simulate"]


@dataclass(frozen=True)
class Stage:
    """One step: `latency` seconds per sample, plus its bytes at `bandwidth` bytes/s.

    It works on `workers` samples at once; `queue` finished ones can wait for the next stage without blocking a worker.
    """

    name: str
    latency: float = 0.0
    bandwidth: float = float("inf")
    workers: int = 1
    queue: int = 1

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0 and self.workers >= 1 and self.queue >= 0):
            raise ValueError(
                f"stage {self.name!r}: latency {self.latency} s, bandwidth {self.bandwidth} bytes/s, {self.workers} "
                f"workers, queue {self.queue}: expected ≥ 0, positive, ≥ 1, ≥ 0"
            )

    def seconds(self, sample_bytes: float) -> float:
        return self.latency + sample_bytes / self.bandwidth


@dataclass(frozen=True)
class Interval:
    """Sample `sample` was worked on in `stage`, by its `worker`, from `start` to `end`, in seconds."""

    stage: str
    worker: int
    sample: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """A trace: stages as (name, workers) in the pipeline's order with the consumer last, and intervals in any order."""

    stages: tuple[tuple[str, int], ...]
    intervals: tuple[Interval, ...]

    @property
    def consumer(self) -> str:
        return self.stages[-1][0]

    @cached_property
    def by_stage(self) -> dict[str, list[Interval]]:
        """The intervals of each stage, in the order of their starts."""
        intervals: dict[str, list[Interval]] = {name: [] for name, _ in self.stages}
        for interval in sorted(self.intervals, key=lambda interval: (interval.start, interval.end, interval.sample)):
            intervals[interval.stage].append(interval)
        return intervals

    @property
    def seconds(self) -> float:
        """The time from the first start to the last end."""
        return max(i.end for i in self.intervals) - min(i.start for i in self.intervals)

    @property
    def utilisation(self) -> float:
        """The share of time in which the consumer worked between its first start and its last end."""
        used = self.by_stage[self.consumer]
        seconds = max(i.end for i in used) - used[0].start  # with several workers the last to start may end first
        return sum(i.seconds for i in used) / seconds / self.stages[-1][1]


def simulate(stages: Sequence[Stage], sample_bytes: Sequence[float], ahead: int | None = None) -> Trace:
    """Return the trace of samples of these sizes.

    With `ahead`, sample i starts only when sample i − ahead − 1 has left the last stage: 0 is a loop that fetches a
    sample when it has finished with the one before. A sample starts in a stage when it has left the stage before and
    sample i − workers has left this one. It leaves when it is finished, its predecessor has left, and the next stage
    has taken sample i − queue.
    """
    if not stages or not len(sample_bytes):
        raise ValueError(f"{len(stages)} stages, {len(sample_bytes)} samples: expected at least one of each")
    if ahead is not None and ahead < 0:
        raise ValueError(f"ahead = {ahead}: expected at least 0")
    starts: list[list[float]] = [[] for _ in stages]
    leaves: list[list[float]] = [[] for _ in stages]
    intervals = []
    for sample, size in enumerate(sample_bytes):
        begin = leaves[-1][sample - ahead - 1] if ahead is not None and sample > ahead else 0.0
        ends = []
        for number, stage in enumerate(stages):
            start = max(begin, leaves[number][sample - stage.workers] if sample >= stage.workers else 0.0)
            if number and not stages[number - 1].queue:
                leaves[number - 1].append(start)  # nowhere to wait: handed over when the next stage takes it
            starts[number].append(start)
            ends.append(start + stage.seconds(size))
            intervals.append(Interval(stage.name, sample % stage.workers, sample, start, ends[-1]))
            begin = ends[-1]
            if sample:
                begin = max(begin, leaves[number][sample - 1])
            last = number + 1 == len(stages)
            if not last and stage.queue and sample >= stage.queue:
                begin = max(begin, starts[number + 1][sample - stage.queue])
            if last or stage.queue:
                leaves[number].append(begin)
    return Trace(tuple((stage.name, stage.workers) for stage in stages), tuple(intervals))
