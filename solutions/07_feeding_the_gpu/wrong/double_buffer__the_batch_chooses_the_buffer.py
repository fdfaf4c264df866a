# expect: a copy waits for the step two batches before
# fails: time
def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    used = [None, None]
    for batch in batches:
        buffer = batch % 2
        if used[buffer] is not None:
            wait("copy", used[buffer])
        copy(buffer, batch)
        wait("compute", record("copy"))
        compute(buffer)
        used[buffer] = record("compute")
