# expect: seconds of the slowest stage with balance([2, 1, 1, 4, 2, 2], 3) = [2, 2, 2]
# fails: values
def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    layers = len(layer_seconds)
    if layers < stages:
        raise ValueError(f"{layers} layers for {stages} stages: each stage needs one")
    return [layers * (stage + 1) // stages - layers * stage // stages for stage in range(stages)]
