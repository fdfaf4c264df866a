# expect: the values that encode was given
# fails: signs
def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers, ties to even, int64."""
    m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
    nan, infinite, negative = np.isnan(values), np.isinf(values), np.signbit(values)
    values[nan | infinite] = 0.0
    magnitude = np.abs(values)
    smallest = 1 - format.bias
    exponent = np.where(magnitude > 0, np.maximum(np.frexp(magnitude)[1] - 1, smallest), smallest)
    steps = np.rint(np.ldexp(magnitude, m - exponent)).astype(np.int64)
    codes = (exponent - smallest).astype(np.int64) * 2**m + steps  # a carry runs into the exponent, as it should
    largest = ones - 2**m if format.infinities else ones - 1
    codes = np.where((codes > largest) | infinite, largest + format.infinities, codes)
    codes = codes + np.where(negative, ones + 1, 0)
    return np.where(nan, ones, codes)
