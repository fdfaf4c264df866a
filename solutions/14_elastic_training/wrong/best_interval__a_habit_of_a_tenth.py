# expect: longer than with the best interval
# fails: short, long
def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    return mtbf / 10
