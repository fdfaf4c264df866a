# expect: seconds of the slowest stage with balance
# fails: values
def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    layers = len(layer_seconds)
    if layers < stages:
        raise ValueError(f"{layers} layers for {stages} stages: each stage needs one")
    mean, counts, held = sum(layer_seconds) / stages, [0], 0.0
    for index, seconds in enumerate(layer_seconds):
        if counts[-1] and (held + seconds > mean or layers - index <= stages - len(counts)) and len(counts) < stages:
            counts.append(0)
            held = 0.0
        counts[-1] += 1
        held += seconds
    return counts
