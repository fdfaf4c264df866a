# expect: different lines among the first
# fails: ring, random
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    return np.random.default_rng(seed).permutation(lines)
