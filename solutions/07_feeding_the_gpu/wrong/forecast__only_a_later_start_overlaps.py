# expect: sample 1 is decoded from 7 s
def forecast(trace: Trace) -> Forecast:
    """Which stage limits the loop, and what a faster one would gain."""
    overlapped = any_overlap(trace.intervals)
    cost = {}
    for stage in trace.stages:
        durations = [each.end - each.start for each in trace.intervals if each.stage == stage.name]
        mean = sum(durations) / max(len(durations), 1)
        cost[stage.name] = mean / stage.workers if overlapped else mean
    pace = max if overlapped else sum
    return Forecast(
        overlapped,
        max(cost, key=cost.get),
        {name: pace(cost.values()) / pace((cost | {name: cost[name] / 2}).values()) for name in cost},
    )


def any_overlap(intervals):
    pairs = [(a, b) for a in intervals for b in intervals if a.stage != b.stage]
    return any(a.start < b.start < a.end and b.end > b.start for a, b in pairs)
