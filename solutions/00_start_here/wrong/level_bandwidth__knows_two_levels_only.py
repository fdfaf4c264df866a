# expect: 8 MB still fit into the 24 MiB of the second level
def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    return levels[0].bandwidth if working_set <= levels[0].capacity else levels[-1].bandwidth
