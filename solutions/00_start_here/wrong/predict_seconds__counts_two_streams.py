# expect: that is the time of 2 vectors
# fails: recorded
def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    """Predicted seconds of one SAXPY call on `n` elements."""
    vector = n * ELEMENT_BYTES[dtype]
    level = next(level for level in machine.levels if 2 * vector <= level.capacity)
    return machine.overhead + 2 * vector / level.bandwidth
