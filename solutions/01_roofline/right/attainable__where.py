def attainable(intensity, peak_flops, bandwidth):
    if not (math.isfinite(peak_flops) and peak_flops > 0):
        raise ValueError(f"peak_flops is {peak_flops}")
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise ValueError(f"bandwidth is {bandwidth}")
    array = np.array(intensity).astype(float)
    if np.isnan(array).any() or (array < 0).any():
        raise ValueError("intensity must not be negative or NaN")
    return np.where(array < peak_flops / bandwidth, array * bandwidth, peak_flops)
