# expect: an error in training also leaves
# caught: hidden
def feed(keys: list, ahead: int, request, receive, cancel, train) -> int:
    """Train on every key's data in order, with `ahead` samples requested in advance."""
    if ahead < 0:
        raise ValueError(f"ahead = {ahead}: expected 0 or more samples in advance")
    tickets = []
    asked = 0
    try:
        for number in range(len(keys)):
            while asked < len(keys) and asked <= number + ahead:
                tickets.append(request(keys[asked]))
                asked += 1
            train(receive(tickets.pop(0)))
    except TimeoutError:
        for ticket in tickets:
            cancel(ticket)
        raise
    return len(keys)


def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    used = [None, None]
    for number, batch in enumerate(batches):
        buffer = number % 2
        if used[buffer] is not None:
            wait("copy", used[buffer])
        copy(buffer, batch)
        wait("compute", record("copy"))
        compute(buffer)
        used[buffer] = record("compute")
