# expect: α of
def fit_link(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second, by least squares on relative errors."""
    slope, start = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return float(np.exp(start)), float(np.exp(-slope))
