from contextlib import ExitStack


def feed(keys: list, ahead: int, request, receive, cancel, train) -> int:
    """Train on every key's data in order, with `ahead` samples requested in advance."""
    if ahead < 0:
        raise ValueError(f"ahead = {ahead}: expected 0 or more")
    tickets, closed = [], 0
    with ExitStack() as stack:
        stack.callback(lambda: [cancel(ticket) for ticket in tickets[closed:]])
        for n in range(len(keys)):
            tickets.extend(request(key) for key in keys[len(tickets) : n + ahead + 1])
            closed = n + 1
            train(receive(tickets[n]))
    return closed
