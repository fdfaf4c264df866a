def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    rng, following = np.random.default_rng(seed), np.zeros(lines, dtype=np.int64)
    for new in range(1, lines):
        before = int(rng.integers(new))
        following[new] = following[before]
        following[before] = new
    return following
