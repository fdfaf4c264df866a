def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    rng, following = np.random.default_rng(seed), np.arange(lines)
    for i in range(lines - 1, 0, -1):  # Sattolo: a swap with an earlier line, never with itself
        j = int(rng.integers(i))
        following[i], following[j] = following[j], following[i]
    return following
