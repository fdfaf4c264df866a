# expect: TB/s
# fails: errors
def read_row(row: DatasheetRow) -> Roof:
    """The dense rate in FLOP/s and the bandwidth in bytes/s behind a printed row."""
    units = {"TFLOP/s": 1e12, "PFLOP/s": 1e15, "GB/s": 1e9, "TB/s": 1e12}
    for unit in (row.rate_unit, row.bandwidth_unit):
        if unit not in units:
            raise ValueError(f"unit {unit!r} in the row of {row.product}: expected one of {', '.join(units)}")
    peak = row.rate * units[row.rate_unit]
    return Roof(peak / 2 if row.sparse else peak, row.bandwidth * units[row.bandwidth_unit])
