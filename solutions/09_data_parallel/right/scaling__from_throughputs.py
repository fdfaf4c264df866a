def scaling(
    forward: float, backward: float, gradient_bytes: int, buckets: int, ranks: int, latency: float, bandwidth: float
) -> Step:
    """Seconds, efficiency and hidden share of a step with equal buckets."""
    steps = 2 * (ranks - 1)
    bandwidth_term = steps * gradient_bytes / (ranks * bandwidth)
    t = buckets * steps * latency + bandwidth_term
    hidden_seconds = min(t * (buckets - 1) / buckets, backward * (buckets - 1) / buckets)
    seconds = forward + backward + t - hidden_seconds
    throughput_of_one, throughput = 1 / (forward + backward), ranks / seconds
    return Step(
        seconds=seconds,
        efficiency=throughput / (ranks * throughput_of_one),
        hidden=hidden_seconds / t if t else 1.0,
    )
