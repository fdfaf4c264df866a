# expect: different strides
# fails: random
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    return np.roll(np.arange(lines, dtype=np.int64), -1)
