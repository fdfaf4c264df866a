# expect: best_k(
# caught: hidden
def schedule(layers: int, k: int) -> list[tuple[str, int]]:
    """Actions of a training step that keeps the inputs of segments of k layers and computes the rest again."""
    require(layers, k)
    actions = []
    for layer in range(layers):
        actions += [("keep", layer)] if layer % k == 0 else []
        actions.append(("forward", layer))
    for first in reversed(range(0, layers, k)):
        actions.append(("restore", first))
        actions += [("record", layer) for layer in range(first, first + k)]
        actions += [("backward", layer) for layer in reversed(range(first, first + k))]
    return actions


def require(layers, k):
    if layers < 1:
        raise ValueError(f"layers = {layers}: expected at least 1")
    if k < 1 or layers % k:
        raise ValueError(f"k = {k}: expected a divisor of layers = {layers}")


def peak(layers: int, k: int, b: float, c: float) -> float:
    """The most bytes held: the inputs of all segments, and everything of one."""
    require(layers, k)
    return layers // k * b + k * c


def best_k(layers: int, b: float, c: float) -> int:
    """The divisor of `layers` with the least peak."""
    require(layers, 1)
    return min((k for k in range(1, layers + 1) if layers % k == 0), key=lambda k: abs(k - layers**0.5))
