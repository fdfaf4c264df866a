# expect: α of
def fit_link(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second, by least squares on relative errors."""
    inverse = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    return seconds[0] - sizes[0] * inverse, 1 / inverse
