# expect: with ahead = -1
# fails: failures
def feed(keys: list, ahead: int, request, receive, cancel, train) -> int:
    """Train on every key's data in order, with `ahead` samples requested in advance."""
    tickets = []
    asked = 0
    try:
        for number in range(len(keys)):
            while asked < len(keys) and asked <= number + ahead:
                tickets.append(request(keys[asked]))
                asked += 1
            if ahead < 0:
                request(keys[0])
                raise ValueError(f"ahead = {ahead}")
            train(receive(tickets.pop(0)))
    finally:
        for ticket in tickets:
            cancel(ticket)
    return len(keys)
