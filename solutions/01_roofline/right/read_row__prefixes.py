PREFIXES = {"G": 9, "T": 12, "P": 15}


def factor(unit, kind, prefixes):
    if len(unit) != 1 + len(kind) or not unit.endswith(kind) or unit[0] not in prefixes:
        raise ValueError(f"a unit of {kind} was expected, not {unit}")
    return 10 ** PREFIXES[unit[0]]


def read_row(row: DatasheetRow) -> Roof:
    peak = row.rate * factor(row.rate_unit, "FLOP/s", "TP")
    bandwidth = row.bandwidth * factor(row.bandwidth_unit, "B/s", "GT")
    if row.sparse:
        peak *= 0.5
    return Roof(peak_flops=peak, bandwidth=bandwidth)
