def forecast(trace: Trace) -> Forecast:
    """Which stage limits the loop, and what a faster one would gain."""
    spans = sorted((i.start, i.end, i.stage) for i in trace.intervals if i.end > i.start)
    overlapped = False
    for k, (_, end, stage) in enumerate(spans):
        for start, _, other in spans[k + 1 :]:
            if start >= end:
                break
            overlapped |= stage != other
    costs = []
    for stage in trace.stages:
        took = [i.end - i.start for i in trace.intervals if i.stage == stage.name]
        costs.append(sum(took) / len(took) / (stage.workers if overlapped else 1) if took else 0.0)
    gain = {}
    for k, stage in enumerate(trace.stages):
        if overlapped:
            others = max((c for j, c in enumerate(costs) if j != k), default=0.0)
            gain[stage.name] = max(costs) / max(others, costs[k] / 2)
        else:
            gain[stage.name] = sum(costs) / (sum(costs) - costs[k] / 2)
    limit = max(range(len(costs)), key=lambda k: (costs[k], -k))
    return Forecast(overlapped, trace.stages[limit].name, gain)
