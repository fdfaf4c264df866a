def schedule(work: float, nodes: int, node_mtbf: float, save: float, recovery: float) -> tuple[float, float]:
    """Seconds between two saves, and days until the run is done."""
    mtbf = node_mtbf / nodes
    ratio = save / (2 * mtbf)
    interval = math.sqrt(2 * save * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save
    each = math.exp(recovery / mtbf) * mtbf * math.expm1((interval + save) / mtbf)
    return interval, work / interval * each / DAY
