# expect: a stage has no layer
# fails: values
def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    layers = len(layer_seconds)
    if layers < stages:
        raise ValueError(f"{layers} layers for {stages} stages: each stage needs one")
    for limit in sorted({sum(layer_seconds[a:b]) for a in range(layers) for b in range(a + 1, layers + 1)}):
        counts, held = [0], 0.0
        for seconds in layer_seconds:
            if held + seconds > limit:
                counts.append(0)
                held = 0.0
            counts[-1] += 1
            held += seconds
        if len(counts) <= stages and limit >= max(layer_seconds):
            return counts + [0] * (stages - len(counts))
    return None
