# expect: hides communication here
def scaling(
    forward: float, backward: float, gradient_bytes: int, buckets: int, ranks: int, latency: float, bandwidth: float
) -> Step:
    """Seconds, efficiency and hidden share of a step with equal buckets."""
    compute_seconds = forward + backward
    communication = buckets * 2 * (ranks - 1) * (latency + gradient_bytes / (buckets * ranks * bandwidth))
    exposed = max(communication / buckets, communication - backward)
    seconds = compute_seconds + exposed if ranks > 1 else compute_seconds
    return Step(seconds, compute_seconds / seconds, 1 - exposed / communication if communication else 1.0)
