# expect: quantity   level_bandwidth(
# fails: values
def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    if len(levels) == 1 or working_set <= levels[0].capacity:
        return levels[0].bandwidth
    if len(levels) == 2 or working_set <= levels[1].capacity:
        return levels[1].bandwidth
    return levels[2].bandwidth
