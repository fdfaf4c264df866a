from bisect import bisect_left
from fractions import Fraction


def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers, by exact search among the codes."""
    values = np.asarray(values, dtype=np.float64)
    return np.array([code_of(float(v), format) for v in values.ravel()], dtype=np.int64).reshape(values.shape)


def number(code: int, format: Format) -> Fraction:
    field, mantissa = divmod(code, 2**format.mantissa_bits)
    unit = Fraction(2) ** (max(field, 1) - format.bias - format.mantissa_bits)
    return (mantissa + (2**format.mantissa_bits if field else 0)) * unit


def code_of(value: float, format: Format) -> int:
    ones = 2 ** (format.bits - 1) - 1
    if math.isnan(value):
        return ones
    sign = ones + 1 if math.copysign(1.0, value) < 0 else 0
    largest = ones - (2**format.mantissa_bits if format.infinities else 1)
    beyond = largest + 1 if format.infinities else largest
    if math.isinf(value):
        return sign + beyond
    exact = abs(Fraction(value))
    if exact >= number(largest + 1, format):
        return sign + beyond
    above = bisect_left(range(largest + 2), exact, key=lambda code: number(code, format))
    if number(above, format) != exact:
        up, down = number(above, format) - exact, exact - number(above - 1, format)
        if down < up or (down == up and above % 2):
            above -= 1
    return sign + min(above, beyond)
