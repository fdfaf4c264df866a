# expect: different lines among the first
# fails: ring, random
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    rng, following = np.random.default_rng(seed), np.arange(lines)
    for i in range(lines - 1, 0, -1):
        j = int(rng.integers(i + 1))
        following[i], following[j] = following[j], following[i]
    return following
