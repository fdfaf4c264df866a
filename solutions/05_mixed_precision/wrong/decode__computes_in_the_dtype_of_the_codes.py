# expect: given as uint8 (as int64 it was right)
# fails: values
def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The exact values of codes, float64."""
    m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
    codes = np.asarray(codes)
    for code in codes[(codes < 0) | (codes > 2 * ones + 1)]:
        raise ValueError(f"code = {code}: expected 0 to {2 * ones + 1}")
    magnitude = codes & ones
    field, mantissa = magnitude >> m, magnitude & (2**m - 1)
    significand = np.where(field > 0, 2.0**m, 0.0) + mantissa
    values = significand * 2.0 ** (np.maximum(field, 1) - format.bias) / 2.0**m
    if format.infinities:
        values = np.where(field == 2**format.exponent_bits - 1, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values = np.where(magnitude == ones, np.nan, values)
    return np.where(codes > ones, -values, values)
