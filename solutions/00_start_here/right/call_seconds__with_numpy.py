import numpy as np


def call_seconds(bytes_moved: float, overhead: float, bandwidth: float) -> float:
    return np.float64(overhead) + np.divide(bytes_moved, bandwidth)
