# expect: that is the rate with sparsity
# fails: values
def read_row(row: DatasheetRow) -> Roof:
    """The dense rate in FLOP/s and the bandwidth in bytes/s behind a printed row."""
    rates, bandwidths = {"TFLOP/s": 1e12, "PFLOP/s": 1e15}, {"GB/s": 1e9, "TB/s": 1e12}
    for unit, known in ((row.rate_unit, rates), (row.bandwidth_unit, bandwidths)):
        if unit not in known:
            raise ValueError(f"unit {unit!r} in the row of {row.product}: expected one of {', '.join(known)}")
    peak = row.rate * rates[row.rate_unit]
    return Roof(peak, row.bandwidth * bandwidths[row.bandwidth_unit])
