# expect: returned
# fails: short, long
def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    return min((mtbf * n / 2000 for n in range(1, 2001)), key=lambda t: expected_seconds(t, save, 0, mtbf))
