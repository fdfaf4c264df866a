def schedule(work: float, nodes: int, node_mtbf: float, save: float, recovery: float) -> tuple[float, float]:
    """Seconds between two saves, and days until the run is done."""
    failures_per_second = nodes / node_mtbf
    interval = best_interval(save, 1 / failures_per_second)
    segments = work / interval
    cost = (math.exp((interval + save) * failures_per_second) - 1) / failures_per_second
    return (interval, segments * cost * math.exp(recovery * failures_per_second) / DAY)
