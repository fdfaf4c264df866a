# expect: that is 1/β
def fit_link(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second, by least squares on relative errors."""
    s, t = np.array(sizes, dtype=float), np.array(seconds, dtype=float)
    (alpha, inverse), *_ = np.linalg.lstsq(np.stack([1 / t, s / t], axis=1), np.ones(len(s)), rcond=None)
    return float(alpha), float(inverse)
