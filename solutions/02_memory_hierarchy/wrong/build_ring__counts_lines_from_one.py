# expect: holds numbers from 1 to
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    order = np.random.default_rng(seed).permutation(lines)
    following = np.empty(lines, np.int64)
    following[order] = np.roll(order, -1) + 1
    return following
