def waits(trace: Trace) -> Waits:
    """How busy the consumer was, and where the sample was for which it waited."""
    consumer, place, steps = trace.stages[-1].name, {}, []
    for each in trace.intervals:
        if each.stage == consumer:
            steps.append(each)
        else:
            place[each.stage, each.sample] = each
    blame = {stage.name: 0.0 for stage in trace.stages[:-1]}
    for stage, _ in place:
        if stage not in blame:
            raise ValueError(f"stage {stage} has an interval and is not in the trace's stages")
    if not steps:
        raise ValueError(f"the consumer, {consumer}, did nothing")
    steps.sort(key=lambda step: step.end)
    last = steps[0]
    for step in steps[1:]:
        for name in blame:
            there = place.get((name, step.sample))
            if there:
                begin, end = max(last.end, there.start), min(step.start, there.end)
                if begin < end:
                    blame[name] += end - begin
        last = step
    worked = math.fsum(step.end - step.start for step in steps)
    return Waits(worked / (steps[-1].end - steps[0].start), blame)
