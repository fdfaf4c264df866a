def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    import functools

    n = len(layer_seconds)
    if n < stages:
        raise ValueError(f"{n} layers, {stages} stages")

    @functools.cache
    def best(start, left):
        if left == 1:
            return sum(layer_seconds[start:]), (n - start,)
        found = []
        for count in range(1, n - start - left + 2):
            rest, counts = best(start + count, left - 1)
            found.append((max(rest, sum(layer_seconds[start : start + count])), (count, *counts)))
        return min(found)

    return list(best(0, stages)[1])
