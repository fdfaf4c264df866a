def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    grid = [mtbf * 1.01**-n for n in range(2500)]
    return max(grid, key=lambda interval: useful_share(interval, save, 0, mtbf))
