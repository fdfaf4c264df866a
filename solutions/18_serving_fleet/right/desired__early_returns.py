def desired(replicas: list[tuple[str, float | None]], target: float, tolerance: float, limits: tuple[int, int]) -> int:
    """How many replicas there should be."""

    def within(number):
        return sorted([limits[0], number, limits[1]])[1]

    present = len(replicas)
    total = reporting = silent = starting = 0
    for state, load in replicas:
        if state == "starting":
            starting += 1
        elif load is None:
            silent += 1
        else:
            total, reporting = total + load, reporting + 1
    if reporting == 0:
        return within(present)
    if total > reporting * target:
        ratio = total / ((reporting + silent + starting) * target)
        if ratio <= 1 or ratio - 1 <= tolerance:
            return within(present)
        return within(math.ceil(total / target))
    total += silent * target
    ratio = total / ((reporting + silent) * target)
    if 1 - ratio <= tolerance:
        return within(present)
    return within(math.ceil(total / target))
