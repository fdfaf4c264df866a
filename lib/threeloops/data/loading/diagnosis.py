"""Reading a trace: is the consumer starved, by whom, and what would help.

Three different questions. *Utilisation* says how much of its time each stage was busy. *Blame* says where the sample
was that the idle consumer waited for. The *limit* is the stage whose seconds a sample, shared by its workers, are the
most: no queue and no prefetching makes a pipeline faster than that.
"""

from dataclasses import dataclass
from itertools import pairwise

from threeloops.simulation.pipeline import Interval, Trace


@dataclass(frozen=True)
class Diagnosis:
    """`busy`, `blame` (seconds) and `gain` (how many times faster if the stage were doubled) by stage.

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
    names = [name for name, _ in trace.stages]
    if not trace.by_stage[names[-1]]:
        raise ValueError(f"stage {names[-1]!r} has no intervals: nothing was consumed")
    overlapped = overlaps(trace)
    mean = {name: total(each) / max(len(each), 1) for name, each in trace.by_stage.items()}
    cost = {name: mean[name] / (workers if overlapped else 1) for name, workers in trace.stages}

    def sample_seconds(costs: dict[str, float]) -> float:
        return max(costs.values()) if overlapped else sum(costs.values())

    return Diagnosis(
        trace.utilisation,
        overlapped,
        max(names, key=lambda name: cost[name]),
        {name: total(trace.by_stage[name]) / (workers * trace.seconds) for name, workers in trace.stages},
        blame(trace),
        {name: sample_seconds(cost) / sample_seconds(cost | {name: cost[name] / 2}) for name in names},
    )


def total(intervals: list[Interval]) -> float:
    return sum(each.end - each.start for each in intervals)


def overlaps(trace: Trace) -> bool:
    """Whether two different stages ever work at the same moment."""
    latest_end: dict[str, float] = {}
    for each in sorted(trace.intervals, key=lambda interval: interval.start):
        if any(end > each.start for stage, end in latest_end.items() if stage != each.stage) and each.end > each.start:
            return True
        latest_end[each.stage] = max(latest_end.get(each.stage, each.end), each.end)
    return False


def blame(trace: Trace) -> dict[str, float]:
    """Seconds in which the consumer was idle between two samples, by the stage in which the awaited sample then was."""
    *before, (consumer, _) = trace.stages
    found = {name: 0.0 for name, _ in before}
    places = {name: {each.sample: each for each in trace.by_stage[name]} for name in found}
    for last, following in pairwise(trace.by_stage[consumer]):
        for name in found:
            if (place := places[name].get(following.sample)) is not None:
                found[name] += max(0.0, min(place.end, following.start) - max(place.start, last.end))
    return found
