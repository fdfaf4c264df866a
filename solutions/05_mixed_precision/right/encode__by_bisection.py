def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers, by search among the codes. Differences of neighbours are exact in float64."""
    values = np.asarray(values, dtype=np.float64)
    return np.array([code_of(float(v), format) for v in values.ravel()], dtype=np.int64).reshape(values.shape)


def number(code: int, format: Format) -> float:
    field, mantissa = divmod(code, 2**format.mantissa_bits)
    return math.ldexp(
        mantissa + (2**format.mantissa_bits if field else 0), max(field, 1) - format.bias - format.mantissa_bits
    )


def code_of(value: float, format: Format) -> int:
    ones = 2 ** (format.bits - 1) - 1
    if math.isnan(value):
        return ones
    sign = ones + 1 if math.copysign(1.0, value) < 0 else 0
    beyond = ones - 2**format.mantissa_bits + 1 if format.infinities else ones - 1
    size = abs(value)
    below, above = 0, beyond + 1 - format.infinities
    if size >= number(above, format):
        return sign + beyond
    while above - below > 1:
        middle = (below + above) // 2
        if number(middle, format) <= size:
            below = middle
        else:
            above = middle
    down, up = size - number(below, format), number(above, format) - size
    nearest = below if down < up or (down == up and below % 2 == 0) else above
    return sign + min(nearest, beyond)
