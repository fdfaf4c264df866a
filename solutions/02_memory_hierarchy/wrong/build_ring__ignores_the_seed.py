# expect: seeds 3 and 4
# fails: random
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    order = np.random.default_rng(0).permutation(lines)
    following = np.empty(lines, np.int64)
    following[order] = np.roll(order, -1)
    return following
