# expect: this is the best for one node: a job fails when any of its nodes does
# fails: interval, days
def schedule(work: float, nodes: int, node_mtbf: float, save: float, recovery: float) -> tuple[float, float]:
    """Seconds between two saves, and days until the run is done."""
    mtbf = node_mtbf
    interval = best_interval(save, mtbf)
    return interval, work / useful_share(interval, save, recovery, mtbf) / DAY
