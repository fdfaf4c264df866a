# expect: with a target of 5 the longest wait is 12 s, with 8 it is 30 s
# fails: burst, edges
def target_for(seats: int, before: float, after: float, lead: float, wait: float) -> int:
    """The highest target that survives a burst. The longest wait is lead · (1 − capacity/after)."""
    if wait >= lead:
        return seats
    needed = after - before  # requests per second that the old replicas must serve
    return min(seats, int(before * seats / needed))
