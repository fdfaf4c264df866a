# expect: the latency is paid once here
def scaling(
    forward: float, backward: float, gradient_bytes: int, buckets: int, ranks: int, latency: float, bandwidth: float
) -> Step:
    """Seconds, efficiency and hidden share of a step with equal buckets."""
    compute_seconds = forward + backward
    communication = 2 * (ranks - 1) * (latency + gradient_bytes / (ranks * bandwidth))
    exposed = max(communication / buckets, communication - backward * (buckets - 1) / buckets)
    seconds = compute_seconds + exposed if ranks > 1 else compute_seconds
    return Step(seconds, compute_seconds / seconds, 1 - exposed / communication if communication else 1.0)
