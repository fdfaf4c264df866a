def one(intensity, peak_flops, bandwidth):
    if not intensity >= 0:
        raise ValueError("intensity = " + str(intensity))
    return min(peak_flops, float(intensity) * bandwidth)


def attainable(intensity, peak_flops, bandwidth):
    rates = {"peak_flops": peak_flops, "bandwidth": bandwidth}
    for name in rates:
        if rates[name] <= 0 or rates[name] != rates[name] or rates[name] == float("inf"):
            raise ValueError(name + " = " + str(rates[name]))
    array = np.asarray(intensity)
    found = [one(i, peak_flops, bandwidth) for i in array.ravel()]
    return np.array(found, dtype=np.float64).reshape(array.shape)
