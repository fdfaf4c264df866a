def attainable(intensity, peak_flops: float, bandwidth: float) -> np.ndarray:
    for name, rate in zip(["peak_flops", "bandwidth"], [peak_flops, bandwidth], strict=True):
        if not (rate > 0 and np.isfinite(rate)):
            raise ValueError(f"{name} = {rate}")
    given = np.array(intensity, dtype=float)
    smallest = given.min() if given.size else 0.0
    if not smallest >= 0:
        raise ValueError(f"intensity down to {smallest}")
    return np.asarray(np.clip(given, 0, peak_flops / bandwidth) * bandwidth)
