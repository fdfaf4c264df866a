# expect: the next limit is fetch
# fails: gain
def forecast(trace: Trace) -> Forecast:
    """Which stage limits the loop, and what a faster one would gain."""
    overlapped = any_overlap(trace.intervals)
    cost = {}
    for stage in trace.stages:
        durations = [each.end - each.start for each in trace.intervals if each.stage == stage.name]
        mean = sum(durations) / max(len(durations), 1)
        cost[stage.name] = mean / stage.workers if overlapped else mean
    pace = sum
    return Forecast(
        overlapped,
        max(cost, key=cost.get),
        {name: pace(cost.values()) / pace((cost | {name: cost[name] / 2}).values()) for name in cost},
    )


def any_overlap(intervals):
    latest = {}  # stage → the latest end so far
    for each in sorted((i for i in intervals if i.end > i.start), key=lambda interval: interval.start):
        if any(end > each.start for stage, end in latest.items() if stage != each.stage):
            return True
        latest[each.stage] = max(each.end, latest.get(each.stage, each.end))
    return False
