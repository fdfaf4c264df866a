from collections import Counter


def percentile(replicas: list[dict[float, int]], q: float) -> float | None:
    if len({tuple(replica) for replica in replicas}) > 1:
        raise ValueError("different bounds")
    total = Counter()
    for replica in replicas:
        before = 0
        for bound, count in replica.items():
            total[bound] += count - before
            before = count
    left = q / 100 * sum(total.values())
    if left == 0:
        return None
    begin = 0.0
    for bound in sorted(total):
        if bound == math.inf:
            break
        if total[bound] > 0 and left <= total[bound]:
            return begin + (bound - begin) * left / total[bound]
        left -= total[bound]
        begin = bound
    return begin
