# expect: it does not matter on which sample
# fails: overlap
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
    pairs = [(a, b) for a in intervals for b in intervals if a.stage != b.stage and a.sample != b.sample]
    return any(min(a.end, b.end) > max(a.start, b.start) for a, b in pairs)
