# expect: P95 of
# fails: one, merged
def percentile(replicas: list[dict[float, int]], q: float) -> float | None:
    if len({tuple(replica) for replica in replicas}) > 1:
        raise ValueError("different bounds")
    bounds = list(replicas[0])
    counts = np.cumsum([sum(replica[bound] for replica in replicas) for bound in bounds])
    rank, lower, below = q / 100 * counts[-1], 0.0, 0
    for bound, count in zip(bounds, counts, strict=True):
        if count and count >= rank:
            return lower if bound == math.inf else float(lower + (bound - lower) * (rank - below) / (count - below))
        lower, below = bound, count
    return None
