# expect: times in 1,200 seeds
# fails: random
# caught: hidden
def build_ring(lines: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    order = np.argsort(rng.integers(0, lines, lines), kind="stable")
    following = np.empty(lines, np.int64)
    following[order] = np.roll(order, -1)
    return following
