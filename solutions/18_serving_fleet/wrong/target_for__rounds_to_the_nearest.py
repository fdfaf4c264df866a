# expect: with a target of 26 the longest wait is 46.15 s, with 25 it is 24 s
# fails: burst, edges
def target_for(seats: int, before: float, after: float, lead: float, wait: float) -> int:
    """The highest target that survives a burst. The longest wait is lead · (1 − capacity/after)."""
    if wait >= lead:
        return seats
    needed = after * (lead - wait) / lead  # requests per second that the old replicas must serve
    return min(seats, round(before * seats / needed))
