def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The exact values of codes, float64."""
    codes = np.asarray(codes)
    for code in codes.ravel().tolist():
        if not 0 <= code < 2**format.bits:
            raise ValueError(f"code = {code}: expected {format.bits} bits")
    return np.array([value_of(code, format) for code in codes.ravel().tolist()], dtype=np.float64).reshape(codes.shape)


def value_of(code: int, format: Format) -> float:
    bits = f"{code:0{format.bits}b}"
    sign = -1.0 if bits[0] == "1" else 1.0
    field, mantissa = int(bits[1 : 1 + format.exponent_bits], 2), int(bits[1 + format.exponent_bits :], 2)
    fraction = mantissa / 2**format.mantissa_bits
    if field == 2**format.exponent_bits - 1 and format.infinities:
        return sign * (math.inf if mantissa == 0 else math.nan)
    if "0" not in bits[1:]:
        return math.nan
    if field == 0:
        return sign * fraction * 2.0 ** (1 - format.bias)
    return sign * (1 + fraction) * 2.0 ** (field - format.bias)
