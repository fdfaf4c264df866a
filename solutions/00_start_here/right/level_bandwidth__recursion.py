def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    first, *rest = levels
    return first.bandwidth if not rest or working_set <= first.capacity else level_bandwidth(working_set, tuple(rest))
