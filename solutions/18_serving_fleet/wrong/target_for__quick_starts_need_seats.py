# expect: ZeroDivisionError: float division by zero
# fails: edges
def target_for(seats: int, before: float, after: float, lead: float, wait: float) -> int:
    """The highest target that survives a burst. The longest wait is lead · (1 − capacity/after)."""
    needed = after * abs(lead - wait) / lead  # requests per second that the old replicas must serve
    return min(seats, int(before * seats / needed))
