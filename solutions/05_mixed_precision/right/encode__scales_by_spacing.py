def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers: round to a multiple of the spacing, then read the fields off."""
    values = np.asarray(values, dtype=np.float64)
    m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
    codes = np.empty(values.shape, dtype=np.int64)
    for place, value in np.ndenumerate(values):
        size = abs(float(value))
        if math.isnan(size):
            codes[place] = ones
            continue
        if math.isinf(size):
            code = ones
        elif size == 0:
            code = 0
        else:
            k = max(math.frexp(size)[1] - 1, 1 - format.bias)
            steps = round(size / 2.0 ** (k - m))  # Python rounds ties to even
            if steps == 2 ** (m + 1):
                k, steps = k + 1, 2**m
            code = (k + format.bias) * 2**m + steps - 2**m if steps >= 2**m else steps
        largest = ones - (2**m if format.infinities else 1)
        code = min(code, largest + 1 if format.infinities else largest)
        codes[place] = code + (ones + 1 if np.signbit(value) else 0)
    return codes
