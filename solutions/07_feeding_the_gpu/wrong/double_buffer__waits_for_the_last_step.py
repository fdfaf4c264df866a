# expect: a copy waits for the step two batches before
# fails: time
def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    used = [None, None]
    for number, batch in enumerate(batches):
        buffer = number % 2
        if number:
            wait("copy", used[1 - buffer])
        copy(buffer, batch)
        wait("compute", record("copy"))
        compute(buffer)
        used[buffer] = record("compute")
