def schedule(work: float, nodes: int, node_mtbf: float, save: float, recovery: float) -> tuple[float, float]:
    """Seconds between two saves, and days until the run is done."""
    mtbf = node_mtbf / nodes
    tried = np.geomspace(save / 2, mtbf * 0.99, 4000)
    shares = [useful_share(float(each), save, recovery, mtbf) for each in tried]
    best = int(np.argmax(shares))
    return float(tried[best]), work / shares[best] / DAY
