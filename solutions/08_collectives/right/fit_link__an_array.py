def fit_link(sizes: list[int], seconds: list[float]) -> np.ndarray:
    """Latency in seconds and bandwidth in bytes per second, by least squares on relative errors."""
    s, t = np.array(sizes, dtype=float), np.array(seconds, dtype=float)
    q, r = np.linalg.qr(np.stack([1 / t, s / t], axis=1))
    alpha, inverse = np.linalg.solve(r, q.T @ np.ones(len(s)))
    return np.array([alpha, 1 / inverse])
