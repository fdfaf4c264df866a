def scaling(
    forward: float, backward: float, gradient_bytes: int, buckets: int, ranks: int, latency: float, bandwidth: float
) -> Step:
    """Seconds, efficiency and hidden share of a step with equal buckets."""
    ring = 2 * (ranks - 1) * (latency + gradient_bytes / buckets / ranks / bandwidth)
    free = 0.0
    for number in range(1, buckets + 1):
        free = max(free, forward + backward * number / buckets) + ring
    alone = forward + backward
    seconds = max(free, alone)
    total = buckets * ring
    hidden = (total - (seconds - alone)) / total if total > 0 else 1.0
    return Step(seconds=seconds, efficiency=alone / seconds, hidden=hidden)
