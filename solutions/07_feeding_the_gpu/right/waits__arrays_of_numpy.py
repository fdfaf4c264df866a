def waits(trace: Trace) -> Waits:
    """How busy the consumer was, and where the sample was for which it waited."""
    times = {stage.name: {} for stage in trace.stages}
    for each in trace.intervals:
        try:
            times[each.stage][each.sample] = (each.start, each.end)
        except KeyError:
            raise ValueError(f"{each.stage}: no such stage") from None
    consumer = trace.stages[-1].name
    if not times[consumer]:
        raise ValueError(f"{consumer}: no steps")
    order = sorted(times[consumer], key=times[consumer].get)
    steps = np.array([times[consumer][sample] for sample in order])
    nowhere = (np.inf, np.inf)
    blame = {}
    for stage in trace.stages[:-1]:
        there = np.array([times[stage.name].get(sample, nowhere) for sample in order])
        shared = np.minimum(there[1:, 1], steps[1:, 0]) - np.maximum(there[1:, 0], steps[:-1, 1])
        blame[stage.name] = float(np.maximum(shared, 0.0).sum())
    return Waits(float((steps[:, 1] - steps[:, 0]).sum() / (steps[-1, 1] - steps[0, 0])), blame)
