# expect: 0.2812
# fails: one, merged
def percentile(replicas: list[dict[float, int]], q: float) -> float | None:
    bounds = list(replicas[0])
    if any(list(r) != bounds for r in replicas):
        raise ValueError("replicas have different bounds")
    counts = [sum(r[b] for r in replicas) for b in bounds]
    if counts[-1] == 0:
        return None
    rank = math.ceil(q / 100 * counts[-1])
    lower, below = 0.0, 0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= rank:
            if bound == math.inf:
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return None
