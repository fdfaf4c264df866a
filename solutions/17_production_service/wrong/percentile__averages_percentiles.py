# expect: this is the average of the replicas' percentiles
# fails: merged
def percentile(replicas: list[dict[float, int]], q: float) -> float | None:
    found = []
    for replica in replicas:
        if list(replica) != list(replicas[0]):
            raise ValueError("different bounds")
        rank, lower, below = q / 100 * replica[math.inf], 0.0, 0
        for bound, count in replica.items():
            if count and count >= rank:
                found.append(lower if bound == math.inf else lower + (bound - lower) * (rank - below) / (count - below))
                break
            lower, below = bound, count
    return sum(found) / len(found) if found else None
