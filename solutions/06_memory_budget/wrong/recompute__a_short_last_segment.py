# expect: k = 5
# fails: errors
def schedule(layers: int, k: int) -> list[tuple[str, int]]:
    """Actions of a training step that keeps the inputs of segments of k layers and computes the rest again."""
    if layers < 1:
        raise ValueError(f"layers = {layers}: expected at least 1")
    if k < 1:
        raise ValueError(f"k = {k}: expected at least 1")
    actions = []
    for layer in range(layers):
        actions += [("keep", layer)] if layer % k == 0 else []
        actions.append(("forward", layer))
    for first in reversed(range(0, layers, k)):
        actions.append(("restore", first))
        actions += [("record", layer) for layer in range(first, min(first + k, layers))]
        actions += [("backward", layer) for layer in reversed(range(first, min(first + k, layers)))]
    return actions
