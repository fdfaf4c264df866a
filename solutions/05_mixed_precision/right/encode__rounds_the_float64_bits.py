def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers: float64's own bits, shortened by integer arithmetic."""
    values = np.array(values, dtype=np.float64)
    bits = values.view(np.int64)
    sign, rest = (bits < 0).astype(np.int64), bits & (2**63 - 1)
    m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
    exponent = (rest >> 52) - 1023
    significand = (rest & (2**52 - 1)) | (np.where(rest >> 52 > 0, 1, 0) << 52)
    below = np.clip(1 - format.bias - exponent, 0, None)  # subnormal: more bits go
    cut = np.minimum(52 - m + below, 60)
    half, mask = np.int64(1) << (cut - 1), (np.int64(1) << cut) - 1
    kept, tail = significand >> cut, significand & mask
    kept = kept + ((tail > half) | ((tail == half) & (kept % 2 == 1)))
    code = np.where(below > 0, kept, ((np.clip(exponent, 1 - format.bias, 2000) + format.bias - 1) << m) + kept)
    largest = ones - 2**m if format.infinities else ones - 1
    code = np.where(code > largest, largest + (1 if format.infinities else 0), code)
    return np.where(np.isnan(values), ones, code + sign * (ones + 1)).astype(np.int64)
