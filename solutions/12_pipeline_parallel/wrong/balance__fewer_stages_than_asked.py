# expect: 3 layers
# fails: edges
def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    layers = len(layer_seconds)
    stages = min(stages, layers)
    best = {(0, 0): (0.0, [])}
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
    return best[stages, layers][1]
