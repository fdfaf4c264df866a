def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    from itertools import combinations

    n = len(layer_seconds)
    if stages > n:
        raise ValueError(f"there are only {n} layers for {stages} stages")

    def counts_of(cuts):
        places = [0, *cuts, n]
        return [b - a for a, b in zip(places, places[1:], strict=False)]

    def slowest(counts):
        start, most = 0, 0
        for count in counts:
            most = max(most, sum(layer_seconds[start : start + count]))
            start += count
        return most

    return min(map(counts_of, combinations(range(1, n), stages - 1)), key=slowest)
