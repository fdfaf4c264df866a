# expect: 2**32 - 1
# fails: random
def build_ring(lines: int, seed: int) -> np.ndarray:
    np.random.seed(seed)
    order = np.random.permutation(lines)
    following = np.empty(lines, np.int64)
    following[order] = np.roll(order, -1)
    return following
