# expect: different rings of 4 lines
# caught: hidden
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    if lines < 1:
        raise ValueError(f"lines = {lines}: expected at least 1")
    shift = int(np.random.default_rng(seed).integers(lines))
    order = (np.random.default_rng(0).permutation(lines) + shift) % lines
    following = np.empty(lines, np.int64)
    following[order] = np.roll(order, -1)
    return following


def plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]:
    """The levels of a memory hierarchy, from the smallest working set to the largest."""
    if len(sizes) != len(nanoseconds):
        raise ValueError(f"{len(sizes)} sizes and {len(nanoseconds)} latencies: expected one latency for each size")
    found, first = [], 0
    while first < len(sizes):
        end = first + 1
        while end < len(sizes) and max(nanoseconds[first : end + 1]) <= 1.25 * min(nanoseconds[first : end + 1]):
            end += 1
        if end - first >= 3:
            found.append(Plateau(float(np.median(nanoseconds[first:end])), sizes[end - 1]))
            first = end
        else:
            first += 1
    return found
