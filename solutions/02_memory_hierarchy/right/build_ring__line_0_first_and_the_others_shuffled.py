def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    others = np.arange(1, lines, dtype=np.int64)
    np.random.default_rng(seed).shuffle(others)
    order = [0, *others.tolist()]
    following = dict(zip(order, order[1:] + order[:1], strict=True))
    return np.array([following[line] for line in range(lines)], dtype=np.int64)
