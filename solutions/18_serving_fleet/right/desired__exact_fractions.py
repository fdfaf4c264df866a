def desired(replicas: list[tuple[str, float | None]], target: float, tolerance: float, limits: tuple[int, int]) -> int:
    """How many replicas there should be."""
    from fractions import Fraction

    fewest, most = limits
    wanted = len(replicas)
    known = [Fraction(load) for state, load in replicas if state == "ready" and load is not None]
    if known:
        up = sum(known) > len(known) * Fraction(target)
        filled = list(known)
        for state, load in replicas:
            if load is None and (up or state == "ready"):
                filled.append(Fraction(0) if up else Fraction(target))
        ratio = sum(filled) / len(filled) / Fraction(target)
        if (ratio > 1) == up and not 1 - Fraction(tolerance) <= ratio <= 1 + Fraction(tolerance):
            wanted = math.ceil(ratio * len(filled))
    return fewest if wanted < fewest else most if wanted > most else wanted
