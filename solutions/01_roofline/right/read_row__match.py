def read_row(row):
    match row.rate_unit:
        case "TFLOP/s":
            peak = row.rate * 1e12
        case "PFLOP/s":
            peak = row.rate * 1e15
        case other:
            raise ValueError(other)
    match row.bandwidth_unit:
        case "GB/s":
            bandwidth = row.bandwidth * 1e9
        case "TB/s":
            bandwidth = row.bandwidth * 1e12
        case other:
            raise ValueError(other)
    return Roof(peak * (0.5 if row.sparse else 1.0), bandwidth)
