# expect: is not None
# fails: merged
def percentile(replicas: list[dict[float, int]], q: float) -> float | None:
    """The q-th percentile of all requests, from the histograms of several replicas."""
    bounds = list(replicas[0])
    for replica in replicas:
        if list(replica) != bounds:
            raise ValueError(f"bounds {list(replica)} and {bounds}: histograms add only if their bounds are the same")
    counts = [sum(replica[bound] for replica in replicas) for bound in bounds]
    rank = q / 100 * counts[-1]
    lower = below = 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count and count >= rank:
            return lower if bound == math.inf else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return 0.0
