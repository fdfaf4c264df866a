# expect: this interval makes the estimate smallest
# fails: long
def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    return math.sqrt(2 * save * mtbf)
