from bisect import bisect_left


def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    return levels[bisect_left([level.capacity for level in levels], working_set)].bandwidth
