# expect: the working set is both vectors
# fails: machines
def predict_seconds(n, dtype, machine):
    vector = n * ELEMENT_BYTES[dtype]
    level = next(level for level in machine.levels if vector <= level.capacity)
    return machine.overhead + 3 * vector / level.bandwidth
