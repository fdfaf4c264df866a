def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    low, high, ratio = 0.0, mtbf, (math.sqrt(5) - 1) / 2
    while high - low > 1e-6 * mtbf:
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if expected_seconds(a, save, 0, mtbf) / a < expected_seconds(b, save, 0, mtbf) / b:
            high = b
        else:
            low = a
    return (low + high) / 2
