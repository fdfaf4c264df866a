# expect: that minimises absolute errors
def fit_link(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second, by least squares on relative errors."""
    inverse, alpha = np.polyfit(sizes, seconds, 1)
    return float(alpha), float(1 / inverse)
