# expect: expected   the float
def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    return next(level for level in levels if working_set <= level.capacity)
