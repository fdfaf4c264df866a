def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    x = min(0.5, math.sqrt(2 * save / mtbf))
    for _ in range(80):
        value, slope = math.log1p(-x) + x + save / mtbf, 1 - 1 / (1 - x)
        x = min(max(x - value / slope, x / 2), (1 + x) / 2)
    return x * mtbf
