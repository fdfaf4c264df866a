def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    steps = []
    for i in range(len(batches)):
        if i >= 2:
            wait("copy", steps[i - 2])
        copy(i & 1, batches[i])
        there = record("copy")
        wait("compute", there)
        compute(i & 1)
        steps.append(record("compute"))
