def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    for level in levels:
        if level.capacity >= working_set:
            return level.bandwidth
    raise ValueError(f"working_set = {working_set}: no level holds it")
