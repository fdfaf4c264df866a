# expect: is closed: received, cancelled, or given up
# fails: failures
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
            data = receive(tickets[0])
            tickets.pop(0)
            train(data)
    finally:
        for ticket in tickets:
            cancel(ticket)
    return len(keys)
