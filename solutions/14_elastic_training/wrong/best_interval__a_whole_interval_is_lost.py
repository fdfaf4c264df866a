# expect: not a whole one
# fails: short, long
def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    return math.sqrt(save * mtbf)
