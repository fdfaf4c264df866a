def scaling(
    forward: float, backward: float, gradient_bytes: int, buckets: int, ranks: int, latency: float, bandwidth: float
) -> Step:
    """Seconds, efficiency and hidden share of a step with equal buckets."""
    if ranks == 1:
        return Step(forward + backward, 1.0, 1.0)
    each = 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * gradient_bytes / buckets / bandwidth
    by_link = forward + backward / buckets + buckets * each
    by_compute = forward + backward + each
    seconds = max(by_link, by_compute)
    exposed = seconds - forward - backward
    share = 1.0 if each == 0 else 1.0 - exposed / (buckets * each)
    return Step(seconds, (forward + backward) / seconds, share)
