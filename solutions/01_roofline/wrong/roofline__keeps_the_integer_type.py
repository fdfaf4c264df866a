# expect: the answer is truncated
# caught: hidden
def read_row(row: DatasheetRow) -> Roof:
    """The dense rate in FLOP/s and the bandwidth in bytes/s behind a printed row."""
    rates, bandwidths = {"TFLOP/s": 1e12, "PFLOP/s": 1e15}, {"GB/s": 1e9, "TB/s": 1e12}
    for unit, known in ((row.rate_unit, rates), (row.bandwidth_unit, bandwidths)):
        if unit not in known:
            raise ValueError(f"unit {unit!r} in the row of {row.product}: expected one of {', '.join(known)}")
    peak = row.rate * rates[row.rate_unit]
    return Roof(peak / 2 if row.sparse else peak, row.bandwidth * bandwidths[row.bandwidth_unit])


def ridge_point(peak_flops: float, bandwidth: float) -> float:
    """The intensity, in FLOP per byte, at which the two roofs meet."""
    require_rates(peak_flops, bandwidth)
    return peak_flops / bandwidth


def attainable(intensity, peak_flops: float, bandwidth: float) -> np.ndarray:
    """FLOP/s within reach at each intensity; the shape of `intensity`, float64."""
    require_rates(peak_flops, bandwidth)
    intensity = np.asarray(intensity)
    if not (intensity >= 0).all():
        raise ValueError(
            f"intensity holds {intensity[~(intensity >= 0)].flat[0]}: expected numbers of at least 0 FLOP/byte"
        )
    return np.minimum(peak_flops, intensity * bandwidth).astype(intensity.dtype)


def require_rates(peak_flops: float, bandwidth: float) -> None:
    for name, rate in (("peak_flops", peak_flops), ("bandwidth", bandwidth)):
        if not 0 < rate < float("inf"):
            raise ValueError(f"{name} = {rate}: expected a positive, finite rate")
