# expect: overlapped
# caught: hidden
def diagnose(trace: Trace) -> Diagnosis:
    """What a loop did with its time, and what would make it faster."""
    stages = {stage.name: [] for stage in trace.stages}
    workers = {stage.name: stage.workers for stage in trace.stages}
    for each in sorted(trace.intervals, key=lambda interval: (interval.start, interval.end)):
        if each.stage not in stages:
            raise ValueError(f"stage {each.stage!r} of sample {each.sample} is not one of {', '.join(stages)}")
        stages[each.stage].append(each)
    *feeding, consumer = stages
    if not stages[consumer]:
        raise ValueError(f"{consumer!r} has no intervals: nothing was consumed")

    total = {name: sum(each.end - each.start for each in found) for name, found in stages.items()}
    seconds = max(each.end for each in trace.intervals) - min(each.start for each in trace.intervals)
    steps = stages[consumer]
    overlapped = any_overlap(trace.intervals)
    cost = {
        name: total[name] / max(len(found), 1) / (workers[name] if overlapped else 1) for name, found in stages.items()
    }
    pace = max if overlapped else sum
    return Diagnosis(
        utilisation=total[consumer] / (steps[-1].end - steps[0].start),
        overlapped=overlapped,
        busy={name: total[name] / (workers[name] * seconds) for name in stages},
        blame={name: waited(steps, stages[name]) for name in feeding},
        limit=max(cost, key=cost.get),
        gain={name: pace(cost.values()) / pace((cost | {name: cost[name] / 2}).values()) for name in cost},
    )


def any_overlap(intervals: list) -> bool:
    latest = {}
    for each in sorted((i for i in intervals if i.end > i.start), key=lambda interval: interval.start):
        if any(end > each.start for stage, end in list(latest.items())[-1:] if stage != each.stage):
            return True
        latest[each.stage] = max(each.end, latest.get(each.stage, each.end))
    return False


def waited(steps: list, intervals: list) -> float:
    place = {each.sample: each for each in intervals}
    idle = 0.0
    for last, following in zip(steps, steps[1:], strict=False):
        if following.sample in place:
            there = place[following.sample]
            idle += max(0.0, min(there.end, following.start) - max(there.start, last.end))
    return idle
