def feed(keys: list, ahead: int, request, receive, cancel, train) -> int:
    """Train on every key's data in order, with `ahead` samples requested in advance."""
    if not ahead >= 0:
        raise ValueError(f"ahead = {ahead}")
    tickets = {n: request(key) for n, key in enumerate(keys[: ahead + 1])}
    try:
        for n in range(len(keys)):
            data = receive(tickets.pop(n))
            train(data)
            if n + ahead + 1 < len(keys):
                tickets[n + ahead + 1] = request(keys[n + ahead + 1])
    finally:
        for ticket in tickets.values():
            cancel(ticket)
    return len(keys)
