def schedule(layers: int, k: int) -> list[tuple[str, int]]:
    """Actions of a training step that keeps the inputs of segments of k layers and computes the rest again."""
    if layers < 1:
        raise ValueError(f"layers = {layers}: expected at least 1")
    if k < 1 or layers % k:
        raise ValueError(f"k = {k}: expected a divisor of layers = {layers}")
    actions = []
    for layer in range(layers - k):
        actions += [("keep", layer)] if layer % k == 0 else []
        actions.append(("forward", layer))
    actions.append(("keep", layers - k))
    for first in reversed(range(0, layers, k)):
        actions.append(("restore", first))
        actions += [("record", layer) for layer in range(first, first + k)]
        actions += [("backward", layer) for layer in reversed(range(first, first + k))]
    return actions
