def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    """Predicted seconds of one SAXPY call on `n` elements."""
    vector = n * ELEMENT_BYTES[dtype]
    level = next(level for level in machine.levels if 2 * vector <= level.capacity)
    return max(machine.overhead, 3 * vector / level.bandwidth)
