import numpy as np


def throughput(bytes_moved, seconds, warmup):
    moved, elapsed = np.asarray(bytes_moved, dtype=float), np.asarray(seconds, dtype=float)
    if moved.size != elapsed.size:
        raise ValueError(f"{moved.size} != {elapsed.size}")
    if (elapsed <= 0).any():
        raise ValueError(f"seconds[{np.argmax(elapsed <= 0)}] is not positive")
    if elapsed[warmup:].size == 0:
        raise ValueError(f"warmup = {warmup} leaves nothing")
    return float(moved[warmup:].sum() / elapsed[warmup:].sum())
