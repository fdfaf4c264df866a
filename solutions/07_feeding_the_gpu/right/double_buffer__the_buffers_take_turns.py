from itertools import cycle


def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    never_read = [record("compute"), record("compute")]
    last_read = {0: never_read[0], 1: never_read[1]}
    for buffer, batch in zip(cycle((0, 1)), batches, strict=False):
        wait("copy", last_read[buffer])
        copy(buffer, batch)
        wait("compute", record("copy"))
        compute(buffer)
        last_read[buffer] = record("compute")
