# expect: the line after the last visit
# fails: ring, random
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    order = np.random.default_rng(seed).permutation(lines)
    following = np.arange(lines)
    following[order[:-1]] = order[1:]
    return following
