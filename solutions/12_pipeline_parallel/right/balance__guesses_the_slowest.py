def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    n = len(layer_seconds)
    if n < stages:
        raise ValueError(f"{n} layers cannot fill {stages} stages")
    sums = sorted({sum(layer_seconds[a:b]) for a in range(n) for b in range(a + 1, n + 1)})

    def filled(limit):
        """Greedily, leaving a layer for each stage to come; None if it takes too many."""
        counts, start = [], 0
        for stage in range(stages):
            end = start + 1
            while end < n - (stages - stage - 1) and sum(layer_seconds[start : end + 1]) <= limit:
                end += 1
            if sum(layer_seconds[start:end]) > limit:
                return None
            counts.append(end - start)
            start = end
        return counts if start == n else None

    return next(found for limit in sums if (found := filled(limit)))
