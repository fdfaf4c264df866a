# expect: also if its key
# fails: order
def feed(keys: list, ahead: int, request, receive, cancel, train) -> int:
    """Train on every key's data in order, with `ahead` samples requested in advance."""
    if ahead < 0:
        raise ValueError(f"ahead = {ahead}: expected 0 or more samples in advance")
    tickets = {}
    try:
        for number, key in enumerate(keys):
            for wanted in keys[number : number + ahead + 1]:
                if wanted not in tickets:
                    tickets[wanted] = request(wanted)
            train(receive(tickets.pop(key)))
    finally:
        for ticket in tickets.values():
            cancel(ticket)
    return len(keys)
