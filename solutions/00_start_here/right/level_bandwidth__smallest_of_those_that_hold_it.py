def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    enough = [level for level in levels if not level.capacity < working_set]
    return min(enough, key=lambda level: level.capacity).bandwidth
