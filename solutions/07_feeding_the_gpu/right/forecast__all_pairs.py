def forecast(trace: Trace) -> Forecast:
    """Which stage limits the loop, and what a faster one would gain."""
    overlapped = any(
        min(a.end, b.end) > max(a.start, b.start)
        for a in trace.intervals
        for b in trace.intervals
        if a.stage != b.stage
    )
    costs = []
    for stage in trace.stages:
        took = [i.end - i.start for i in trace.intervals if i.stage == stage.name]
        costs.append(sum(took) / len(took) / (stage.workers if overlapped else 1) if took else 0.0)
    names = [stage.name for stage in trace.stages]
    whole = max(costs) if overlapped else sum(costs)
    gain = {}
    for k, name in enumerate(names):
        halved = [*costs[:k], costs[k] / 2, *costs[k + 1 :]]
        gain[name] = whole / (max(halved) if overlapped else sum(halved))
    return Forecast(overlapped, names[costs.index(max(costs))], gain)
