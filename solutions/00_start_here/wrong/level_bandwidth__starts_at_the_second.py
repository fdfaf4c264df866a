# expect: fit into the first level
def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    return next((level.bandwidth for level in levels[1:] if working_set <= level.capacity), levels[0].bandwidth)
