def target_for(seats: int, before: float, after: float, lead: float, wait: float) -> int:
    """The highest target that survives a burst; `low` is good, `high` is not."""
    low, high = 0, seats + 1
    while high - low > 1:
        middle = (low + high) // 2
        # times middle, so that nothing is divided
        if lead * (after * middle - before * seats) <= wait * after * middle * (1 + 1e-12):
            low = middle
        else:
            high = middle
    return low
