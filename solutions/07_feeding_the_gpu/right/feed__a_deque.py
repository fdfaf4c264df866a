from collections import deque


def feed(keys: list, ahead: int, request, receive, cancel, train) -> int:
    """Train on every key's data in order, with `ahead` samples requested in advance."""
    if ahead < 0:
        raise ValueError(f"ahead must not be negative, got {ahead}")
    waiting, open_tickets, steps = deque(keys), deque(), 0
    try:
        while waiting or open_tickets:
            while waiting and len(open_tickets) <= ahead:
                open_tickets.append(request(waiting.popleft()))
            train(receive(open_tickets.popleft()))
            steps += 1
    except BaseException:
        while open_tickets:
            cancel(open_tickets.popleft())
        raise
    return steps
