def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The exact values of codes, float64: the fields are moved to where float64 has them."""
    wide = np.array(codes, dtype=np.int64)
    outside = (wide < 0) | (wide >= 1 << format.bits)
    if outside.any():
        raise ValueError(f"code = {wide[outside][0]} does not fit in {format.bits} bits")
    e, m = format.exponent_bits, format.mantissa_bits
    field, mantissa = (wide >> m) % 2**e, wide % 2**m
    sign = (wide >> (e + m)) << 63
    normal = (((field - format.bias + 1023) << 52) + (mantissa << (52 - m))).view(np.float64)
    size = np.where(field == 0, mantissa * 2.0 ** (1 - format.bias - m), normal)
    if format.infinities:
        top = field == 2**e - 1
        size = np.where(top & (mantissa > 0), np.nan, np.where(top, np.inf, size))
    else:
        size = np.where(wide % 2 ** (e + m) == 2 ** (e + m) - 1, np.nan, size)
    return (np.ascontiguousarray(size).view(np.int64) | sign).view(np.float64)
