# expect: encode of NaN with a sign
# fails: signs
def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers, ties to even, int64."""
    m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
    magnitude = np.where(np.isfinite(values), np.abs(values), 0.0)
    smallest = 1 - format.bias
    exponent = np.where(magnitude > 0, np.maximum(np.frexp(magnitude)[1] - 1, smallest), smallest)
    steps = np.rint(np.ldexp(magnitude, m - exponent)).astype(np.int64)
    codes = (exponent - smallest).astype(np.int64) * 2**m + steps  # a carry runs into the exponent, as it should
    largest = ones - 2**m if format.infinities else ones - 1
    codes = np.where((codes > largest) | np.isinf(values), largest + format.infinities, codes)
    codes = np.where(np.isnan(values), ones, codes)
    return codes + np.where(np.signbit(values), ones + 1, 0)
