def percentile(replicas: list[dict[float, int]], q: float) -> float | None:
    bounds = np.array(list(replicas[0]))
    if any(list(replica) != list(bounds) for replica in replicas):
        raise ValueError("the replicas have different bounds")
    counts = np.sum([list(replica.values()) for replica in replicas], axis=0)
    if counts[-1] == 0:
        return None
    rank = q / 100 * counts[-1]
    place = int(np.searchsorted(counts, rank))
    if place == len(bounds) - 1:
        return float(bounds[-2])
    lower, below = (bounds[place - 1], counts[place - 1]) if place else (0.0, 0)
    return float(lower + (bounds[place] - lower) * (rank - below) / (counts[place] - below))
