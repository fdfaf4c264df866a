# expect: code = -1073741824
# fails: values
def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The exact values of codes, float64."""
    m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
    codes = np.asarray(codes).astype(np.int32)
    for code in codes[(codes < 0) | (codes > 2 * ones + 1)]:
        raise ValueError(f"code = {code}: expected 0 to {2 * ones + 1}")
    magnitude = codes & ones
    field, mantissa = magnitude >> m, magnitude & (2**m - 1)
    significand = np.where(field > 0, 2**m, 0) + mantissa
    values = np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - format.bias - m)
    if format.infinities:
        values = np.where(field == 2**format.exponent_bits - 1, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values = np.where(magnitude == ones, np.nan, values)
    return np.where(codes > ones, -values, values)
