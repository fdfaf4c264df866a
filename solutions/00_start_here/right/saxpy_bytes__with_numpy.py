import numpy as np


def saxpy_bytes(n, element_bytes):
    return np.int64(n) * np.array([element_bytes] * 3, dtype=np.int64).sum()
