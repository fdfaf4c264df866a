def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The exact values of codes, float64."""
    codes = np.asarray(codes, dtype=object)
    wrong = [c for c in codes.flat if c < 0 or c >= 2**format.bits]
    if wrong:
        raise ValueError(f"code = {wrong[0]}")
    codes = codes.astype(np.int64)
    negative, rest = np.divmod(codes, 2 ** (format.bits - 1))
    field, mantissa = np.divmod(rest, 2**format.mantissa_bits)
    values = np.zeros(codes.shape)
    low = field == 0
    values[low] = mantissa[low] / 2.0**format.mantissa_bits * 2.0 ** (1 - format.bias)
    high = ~low
    values[high] = (1 + mantissa[high] / 2.0**format.mantissa_bits) * 2.0 ** (field[high] - format.bias)
    last = field == 2**format.exponent_bits - 1
    if format.infinities:
        values[last] = np.nan
        values[last & (mantissa == 0)] = np.inf
    values[last & (mantissa == 2**format.mantissa_bits - 1)] = np.nan
    return np.copysign(values, 1.0 - 2.0 * negative)
