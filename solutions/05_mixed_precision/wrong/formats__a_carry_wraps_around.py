# expect: a carry into the exponent
# caught: hidden
def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The exact values of codes, float64."""
    m, bits = format.mantissa_bits, format.exponent_bits + format.mantissa_bits
    codes = np.asarray(codes, np.int64)
    for code in codes[(codes < 0) | (codes >> (bits + 1) > 0)]:
        raise ValueError(f"code = {code}: expected 0 to {2 ** (bits + 1) - 1}")
    magnitude = codes & (2**bits - 1)
    field, mantissa = magnitude >> m, magnitude & (2**m - 1)
    one = np.where(field > 0, 2**m, 0)
    values = np.ldexp((one + mantissa).astype(np.float64), np.maximum(field, 1) - bias(format) - m)
    if format.infinities:
        values = np.where(field == 2**format.exponent_bits - 1, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values = np.where(magnitude == 2**bits - 1, np.nan, values)
    return np.where(codes >> bits == 1, -values, values)


def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers, ties to even, int64."""
    m, bits = format.mantissa_bits, format.exponent_bits + format.mantissa_bits
    values = np.asarray(values, np.float64)
    magnitude = np.where(np.isfinite(values), np.abs(values), 0.0)
    smallest = 1 - bias(format)
    exponent = np.where(magnitude > 0, np.maximum(np.frexp(magnitude)[1] - 1, smallest), smallest)
    steps = np.rint(np.ldexp(magnitude, m - exponent)).astype(np.int64)
    field = (exponent - smallest).astype(np.int64) + np.where(magnitude >= 2.0**smallest, 1, 0)
    codes = field * 2**m + steps % 2**m
    largest = 2**bits - 2**m - 1 if format.infinities else 2**bits - 2
    overflow = largest + 1 if format.infinities else largest
    codes = np.where((codes > largest) | np.isinf(values), overflow, codes)
    codes = codes + np.where(np.signbit(values), 2**bits, 0)
    return np.where(np.isnan(values), 2**bits - 1, codes)


def bias(format: Format) -> int:
    return 2 ** (format.exponent_bits - 1) - 1
