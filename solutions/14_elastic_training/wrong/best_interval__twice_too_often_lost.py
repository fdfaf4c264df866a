# expect: so it costs τ/(2M)
# fails: short, long
def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    return math.sqrt(4 * save * mtbf)
