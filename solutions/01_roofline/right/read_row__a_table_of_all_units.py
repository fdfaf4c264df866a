SCALE = {"TFLOP/s": ("rate", 1e12), "PFLOP/s": ("rate", 1e15), "GB/s": ("move", 1e9), "TB/s": ("move", 1e12)}


def read_row(row):
    numbers = []
    for value, unit, kind in [(row.rate, row.rate_unit, "rate"), (row.bandwidth, row.bandwidth_unit, "move")]:
        found = SCALE.get(unit)
        if found is None or found[0] != kind:
            raise ValueError(f"no such unit: {unit}")
        numbers.append(np.float64(value * found[1]))
    return Roof(numbers[0] / (1 + row.sparse), numbers[1])
