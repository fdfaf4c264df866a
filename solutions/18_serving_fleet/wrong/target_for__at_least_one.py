# expect: a target of 1 lets 160 per second through, and 180 come: the longest wait is 6.7 s
# fails: edges
def target_for(seats: int, before: float, after: float, lead: float, wait: float) -> int:
    """The highest target that survives a burst. The longest wait is lead · (1 − capacity/after)."""
    if wait >= lead:
        return seats
    needed = after * (lead - wait) / lead  # requests per second that the old replicas must serve
    return min(seats, max(1, int(before * seats / needed)))
