# expect: the starting ones count as 0, and then the ratio is 1
# fails: unseen
def desired(replicas: list[tuple[str, float | None]], target: float, tolerance: float, limits: tuple[int, int]) -> int:
    """How many replicas there should be."""
    number = len(replicas)
    seen = [load for state, load in replicas if state == "ready" and load is not None]
    missing = sum(state == "ready" and load is None for state, load in replicas)
    if seen:
        first = sum(seen) / len(seen) / target
        total, counted = sum(seen), len(seen) + missing
        if first > 1:
            counted = number
        else:
            total += missing * target
        second = first
        if abs(second - 1) > tolerance and (first > 1) == (second > 1):
            number = math.ceil(number * first)
    return min(max(number, limits[0]), limits[1])
