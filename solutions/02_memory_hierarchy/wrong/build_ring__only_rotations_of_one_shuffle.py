# expect: different rings of 4 lines
# fails: random
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    if lines < 1:
        raise ValueError(f"lines = {lines}: expected at least 1")
    shift = int(np.random.default_rng(seed).integers(lines))
    order = (np.random.default_rng(0).permutation(lines) + shift) % lines
    following = np.empty(lines, np.int64)
    following[order] = np.roll(order, -1)
    return following
