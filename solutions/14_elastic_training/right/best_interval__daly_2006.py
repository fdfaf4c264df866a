def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    ratio = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save
