import numpy as np


def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    capacity = np.array([level.capacity for level in machine.levels])
    bandwidth = np.array([level.bandwidth for level in machine.levels])
    size = ELEMENT_BYTES[dtype]
    return machine.overhead + 3 * n * size / bandwidth[np.argmax(capacity >= 2 * n * size)]
