# expect: which level holds what the loop touches?
def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    """Predicted seconds of one SAXPY call on `n` elements."""
    vector = n * ELEMENT_BYTES[dtype]
    level = machine.levels[-1]
    return machine.overhead + 3 * vector / level.bandwidth
