# expect: this is the best for a job that fails more rarely the more nodes it has
# fails: interval, days
def schedule(work: float, nodes: int, node_mtbf: float, save: float, recovery: float) -> tuple[float, float]:
    """Seconds between two saves, and days until the run is done."""
    mtbf = node_mtbf * nodes
    interval = best_interval(save, mtbf)
    return interval, work / useful_share(interval, save, recovery, mtbf) / DAY
