import numpy as np


def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    grid = np.geomspace(1e-6, 1.0, 20_001) * mtbf
    return grid[np.argmin(np.expm1((grid + save) / mtbf) / grid)]
