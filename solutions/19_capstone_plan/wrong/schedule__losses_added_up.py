# expect: this adds up losses as if failures were rare
# fails: days
def schedule(work: float, nodes: int, node_mtbf: float, save: float, recovery: float) -> tuple[float, float]:
    """Seconds between two saves, and days until the run is done."""
    mtbf = node_mtbf / nodes
    interval = best_interval(save, mtbf)
    return interval, work / (1 - save / interval - (interval / 2 + recovery) / mtbf) / DAY
