# expect: a factor of
# fails: machines
# caught: hidden
def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    """Predicted seconds of one SAXPY call on `n` elements."""
    vector = n * ELEMENT_BYTES[dtype]
    level = next((level for level in machine.levels[:3] if 2 * vector <= level.capacity), machine.levels[-1])
    return machine.overhead + 3 * vector / level.bandwidth
