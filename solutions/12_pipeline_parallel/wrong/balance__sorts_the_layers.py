# expect: seconds of the slowest stage with balance
# fails: values
def balance(layer_seconds: list[float], stages: int) -> list[int]:
    """Numbers of layers per stage, with the fastest slowest stage."""
    layers = len(layer_seconds)
    if layers < stages:
        raise ValueError(f"{layers} layers for {stages} stages: each stage needs one")
    held, counts = [0.0] * stages, [0] * stages
    for seconds in sorted(layer_seconds, reverse=True):
        least = held.index(min(held))
        held[least] += seconds
        counts[least] += 1
    return counts
