# expect: a float64 element has 8 bytes
def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    """Predicted seconds of one SAXPY call on `n` elements."""
    vector = n * 4
    level = next(level for level in machine.levels if 2 * vector <= level.capacity)
    return machine.overhead + 3 * vector / level.bandwidth
