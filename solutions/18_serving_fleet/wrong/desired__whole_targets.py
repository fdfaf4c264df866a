# expect: target 1.5
# fails: seen
def desired(replicas: list[tuple[str, float | None]], target: float, tolerance: float, limits: tuple[int, int]) -> int:
    """How many replicas there should be."""
    low, high = limits
    n = len(replicas)
    known = [load for state, load in replicas if state == "ready" and load is not None]
    missing = sum(state == "ready" and load is None for state, load in replicas)
    starting = n - len(known) - missing
    result = n
    if known:
        first = sum(known) / len(known) / target
        filled = known + ([0] * (missing + starting) if first > 1 else [target] * missing)
        second = sum(filled) / len(filled) / target
        if abs(second - 1) > tolerance and (first > 1) == (second > 1):
            result = -(-int(sum(filled)) // int(target))
    return min(max(result, low), high)
