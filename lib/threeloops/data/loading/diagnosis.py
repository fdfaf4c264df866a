"""Read a trace: whether the consumer is starved, by which stage, and what would help.

*Utilisation* is the share of the time in which the consumer was busy. *Blame* counts, for each stage, the time in which
the idle consumer waited for a sample in that stage. The *limit* is the stage with the most seconds per sample, divided
by its number of workers. No queue and no prefetching makes a pipeline faster than this stage.
"""

from dataclasses import dataclass
from itertools import pairwise

from threeloops.simulation.pipeline import Trace

__all__ = ["Diagnosis", "blame", "diagnose", "overlaps"]


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis by stage: the share of time in which it was `busy`, its `blame` in seconds, and its `gain`, the
    speed-up from doubling it.

    `overlapped` is False for a loop in which no two stages ever work at once.
    """

    utilisation: float
    overlapped: bool
    limit: str
    busy: dict[str, float]
    blame: dict[str, float]
    gain: dict[str, float]


def diagnose(trace: Trace) -> Diagnosis:
    """Raises ValueError for a trace in which the last stage never worked."""
    if not trace.by_stage[trace.consumer]:
        raise ValueError(f"stage {trace.consumer!r} has no intervals: nothing was consumed")
    overlapped = overlaps(trace)
    total = {name: sum(interval.seconds for interval in intervals) for name, intervals in trace.by_stage.items()}
    cost = {
        name: total[name] / max(len(trace.by_stage[name]), 1) / (workers if overlapped else 1)
        for name, workers in trace.stages
    }

    def sample_seconds(costs: dict[str, float]) -> float:
        return max(costs.values()) if overlapped else sum(costs.values())

    return Diagnosis(
        trace.utilisation,
        overlapped,
        max(cost, key=lambda name: cost[name]),
        {name: total[name] / (workers * trace.seconds) for name, workers in trace.stages},
        blame(trace),
        {name: sample_seconds(cost) / sample_seconds(cost | {name: cost[name] / 2}) for name in cost},
    )


def overlaps(trace: Trace) -> bool:
    """Whether two different stages ever work at the same moment."""
    latest_end: dict[str, float] = {}
    for interval in sorted(trace.intervals, key=lambda interval: interval.start):
        if (
            any(end > interval.start for stage, end in latest_end.items() if stage != interval.stage)
            and interval.seconds > 0
        ):
            return True
        latest_end[interval.stage] = max(latest_end.get(interval.stage, interval.end), interval.end)
    return False


def blame(trace: Trace) -> dict[str, float]:
    """Seconds in which the consumer was idle between two samples, by the stage in which the awaited sample then was."""
    idle = {name: 0.0 for name, _ in trace.stages[:-1]}
    places = {(interval.stage, interval.sample): interval for name in idle for interval in trace.by_stage[name]}
    for last, following in pairwise(trace.by_stage[trace.consumer]):
        for name in idle:
            if (place := places.get((name, following.sample))) is not None:
                idle[name] += max(0.0, min(place.end, following.start) - max(place.start, last.end))
    return idle
