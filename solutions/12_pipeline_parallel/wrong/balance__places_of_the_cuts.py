# expect: layers in balance
# fails: values
def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    layers = len(layer_seconds)
    if layers < stages:
        raise ValueError(f"{layers} layers for {stages} stages: each stage needs one")
    best = {(0, 0): (0.0, [])}  # by stages and layers used so far: the slowest stage, and the division
    for stage in range(1, stages + 1):
        for end in range(stage, layers + 1):
            best[stage, end] = min(
                (
                    max(best[stage - 1, start][0], sum(layer_seconds[start:end])),
                    [*best[stage - 1, start][1], end - start],
                )
                for start in range(stage - 1, end)
                if (stage - 1, start) in best
            )
    counts = best[stages, layers][1]
    return [sum(counts[: stage + 1]) for stage in range(stages)]
