# expect: buffer = 2
def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    used = [None, None, None]
    for number, batch in enumerate(batches):
        buffer = min(number, 2)
        if used[buffer] is not None:
            wait("copy", used[buffer])
        copy(buffer, batch)
        wait("compute", record("copy"))
        compute(buffer)
        used[buffer] = record("compute")
