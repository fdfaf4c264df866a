# expect: shape (4,), int64
# fails: values
def attainable(intensity, peak_flops: float, bandwidth: float) -> np.ndarray:
    """FLOP/s within reach at each intensity; the shape of `intensity`, float64."""
    for name, rate in (("peak_flops", peak_flops), ("bandwidth", bandwidth)):
        if not 0 < rate < math.inf:
            raise ValueError(f"{name} = {rate}: expected a positive, finite rate")
    intensity = np.asarray(intensity)
    if not (intensity >= 0).all():
        raise ValueError(f"intensity = {intensity}: expected numbers of at least 0 FLOP per byte")
    return np.minimum(peak_flops, intensity * bandwidth).astype(intensity.dtype)
