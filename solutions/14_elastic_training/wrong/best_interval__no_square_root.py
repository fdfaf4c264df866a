# expect: is zero where τ² has this value
# fails: short, long
def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    return 2 * save * mtbf
