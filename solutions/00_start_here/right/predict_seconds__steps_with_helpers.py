def bytes_of(n, dtype):
    return n * {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]


def bandwidth_for(touched, levels):
    for level in levels:
        if touched <= level.capacity:
            return level.bandwidth
    raise ValueError(f"no level holds {touched} bytes")


def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    touched, moved = 2 * bytes_of(n, dtype), 3 * bytes_of(n, dtype)
    return machine.overhead + moved / bandwidth_for(touched, machine.levels)
