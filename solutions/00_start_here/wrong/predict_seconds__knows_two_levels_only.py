# expect: made-up machine of 3 levels
# fails: machines
def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    """Predicted seconds of one SAXPY call on `n` elements."""
    vector = n * ELEMENT_BYTES[dtype]
    level = (
        machine.levels[0] if len(machine.levels) == 1 or 2 * vector <= machine.levels[0].capacity else machine.levels[1]
    )
    return machine.overhead + 3 * vector / level.bandwidth
