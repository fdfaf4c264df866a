def target_for(seats: int, before: float, after: float, lead: float, wait: float) -> int:
    """The highest target that survives a burst."""
    for target in range(seats, 0, -1):
        old = before * seats / target
        longest = max(0.0, lead - lead * old / after)
        if longest <= wait + 1e-9:
            return target
    return 0
