# expect: interval in seconds for
# fails: interval
def schedule(work: float, nodes: int, node_mtbf: float, save: float, recovery: float) -> tuple[float, float]:
    """Seconds between two saves, and days until the run is done."""
    mtbf = node_mtbf / nodes
    interval = min(HOUR, mtbf / 2)
    return interval, work / useful_share(interval, save, recovery, mtbf) / DAY
