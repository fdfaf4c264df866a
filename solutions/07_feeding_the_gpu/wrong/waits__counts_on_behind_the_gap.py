# expect: ends behind it: only the gap counts
# fails: values
def waits(trace: Trace) -> Waits:
    """How busy the consumer was, and where the sample was for which it waited."""
    by_stage = {stage.name: [] for stage in trace.stages}
    for each in sorted(trace.intervals, key=lambda interval: interval.start):
        if each.stage not in by_stage:
            raise ValueError(f"stage {each.stage!r} of sample {each.sample}: expected one of {', '.join(by_stage)}")
        by_stage[each.stage].append(each)
    consumer = trace.stages[-1].name
    steps = by_stage.pop(consumer)
    if not steps:
        raise ValueError(f"{consumer!r} has no intervals: nothing was consumed")
    blame = dict.fromkeys(by_stage, 0.0)
    for last, following in zip(steps, steps[1:], strict=False):
        for name, intervals in by_stage.items():
            for each in intervals:
                if each.sample == following.sample:
                    blame[name] += max(0.0, each.end - max(each.start, last.end))
    worked = sum(each.end - each.start for each in steps)
    return Waits(worked / (steps[-1].end - steps[0].start), blame)
