# expect: before its batch is complete
def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    used = [None, None]
    for number, batch in enumerate(batches):
        buffer = number % 2
        if used[buffer] is not None:
            wait("copy", used[buffer])
        copy(buffer, batch)
        compute(buffer)
        used[buffer] = record("compute")
