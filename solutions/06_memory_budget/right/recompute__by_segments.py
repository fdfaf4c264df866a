def schedule(layers: int, k: int) -> list[tuple[str, int]]:
    """Actions of a training step that keeps the inputs of segments of k layers and computes the rest again."""
    if layers < 1:
        raise ValueError(f"layers = {layers}: expected at least 1")
    if k < 1 or layers % k:
        raise ValueError(f"k = {k}: expected a divisor of layers = {layers}")
    segments = [list(range(first, first + k)) for first in range(0, layers, k)]
    there = [action for s in segments for action in [("keep", s[0]), *(("forward", i) for i in s)]]
    back = [
        action
        for s in segments[::-1]
        for action in [("restore", s[0]), *(("record", i) for i in s), *(("backward", i) for i in s[::-1])]
    ]
    return there + back
