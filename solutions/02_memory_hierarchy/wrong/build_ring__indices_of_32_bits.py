# expect: int32
# fails: ring
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    order = np.random.default_rng(seed).permutation(lines)
    following = np.empty(lines, np.int32)
    following[order] = np.roll(order, -1)
    return following
