def visit(first, layers, k):
    if first == layers:
        return
    yield "keep", first
    for layer in range(first, first + k):
        yield "forward", layer
    yield from visit(first + k, layers, k)
    yield "restore", first
    for layer in range(first, first + k):
        yield "record", layer
    for layer in range(first + k - 1, first - 1, -1):
        yield "backward", layer


def schedule(layers: int, k: int) -> list[tuple[str, int]]:
    """Actions of a training step that keeps the inputs of segments of k layers and computes the rest again."""
    if layers < 1:
        raise ValueError(f"layers = {layers}: expected at least 1")
    if k < 1 or layers % k:
        raise ValueError(f"k = {k}: expected a divisor of layers = {layers}")
    return list(visit(0, layers, k))
