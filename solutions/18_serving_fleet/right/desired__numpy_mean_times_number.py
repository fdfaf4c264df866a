def desired(replicas: list[tuple[str, float | None]], target: float, tolerance: float, limits: tuple[int, int]) -> int:
    """How many replicas there should be."""
    loads = np.array([np.nan if load is None else load for _, load in replicas], dtype=float)
    ready = np.array([state == "ready" for state, _ in replicas], dtype=bool)
    seen = ready & ~np.isnan(loads)
    if not seen.any():
        return int(np.clip(len(replicas), *limits))
    first = loads[seen].mean() / target
    if first > 1:
        second = np.where(seen, loads, 0.0).mean() / target
        counted = len(loads)
    else:
        second = np.where(seen, loads, target)[ready].mean() / target
        counted = int(ready.sum())
    steady = abs(second - 1) <= tolerance or (first > 1) != (second > 1)
    return int(np.clip(len(replicas) if steady else math.ceil(counted * second), *limits))
