def forecast(trace: Trace) -> Forecast:
    """Which stage limits the loop, and what a faster one would gain."""
    events = []
    for each in trace.intervals:
        if each.end > each.start:
            events += [(each.start, 1, each.stage), (each.end, -1, each.stage)]
    working, overlapped = {}, False
    for _, change, stage in sorted(events):  # of one moment, ends come first
        working[stage] = working.get(stage, 0) + change
        overlapped = overlapped or sum(count > 0 for count in working.values()) > 1
    costs = []
    for stage in trace.stages:
        took = [i.end - i.start for i in trace.intervals if i.stage == stage.name]
        costs.append(sum(took) / len(took) / (stage.workers if overlapped else 1) if took else 0.0)
    cost = dict(zip((stage.name for stage in trace.stages), costs, strict=True))

    def seconds(of):
        return max(of.values()) if overlapped else math.fsum(of.values())

    gain = {name: seconds(cost) / seconds({**cost, name: cost[name] * 0.5}) for name in cost}
    return Forecast(overlapped, next(name for name in cost if cost[name] == max(costs)), gain)
