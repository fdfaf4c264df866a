# expect: longer than with the best interval
# fails: short, long
def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    return min((mtbf * n / 10 for n in range(1, 11)), key=lambda t: expected_seconds(t, save, 0, mtbf) / t)
