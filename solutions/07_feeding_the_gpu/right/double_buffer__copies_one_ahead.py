def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    if not batches:
        return
    copy(0, batches[0])
    there = record("copy")
    free = None
    for i in range(len(batches)):
        wait("compute", there)
        if i + 1 < len(batches):
            if free is not None:
                wait("copy", free)
            copy((i + 1) % 2, batches[i + 1])
            there = record("copy")
        compute(i % 2)
        free = record("compute")
