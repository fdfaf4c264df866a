# expect: of exactly the capacity still fits
# fails: edges
def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    return next(level.bandwidth for level in levels if working_set < level.capacity)
