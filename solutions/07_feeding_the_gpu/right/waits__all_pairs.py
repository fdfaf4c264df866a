def waits(trace: Trace) -> Waits:
    """How busy the consumer was, and where the sample was for which it waited."""
    names = [stage.name for stage in trace.stages]
    for each in trace.intervals:
        if each.stage not in names:
            raise ValueError(f"unknown stage {each.stage}")
    *feeding, consumer = names
    steps = sorted((i.start, i.end, i.sample) for i in trace.intervals if i.stage == consumer)
    if len(steps) == 0:
        raise ValueError(f"no intervals of {consumer}")
    blame = {}
    for name in feeding:
        mine = [i for i in trace.intervals if i.stage == name]
        shared = [
            min(i.end, start) - max(i.start, end)
            for (_, end, _), (start, _, sample) in zip(steps, steps[1:], strict=False)
            for i in mine
            if i.sample == sample
        ]
        blame[name] = sum(s for s in shared if s > 0)
    return Waits(sum(b - a for a, b, _ in steps) / (steps[-1][1] - steps[0][0]), blame)
