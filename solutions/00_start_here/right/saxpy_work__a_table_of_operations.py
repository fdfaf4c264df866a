import fractions

ACCESSES = ("read x", "read y", "write y")
OPERATIONS = ("multiply", "add")


def known(dtype):
    return dtype in ELEMENT_BYTES


def saxpy_work(n: int, dtype: str) -> Work:
    if not known(dtype):
        raise ValueError(dtype)
    if n < 0:
        raise ValueError(n)
    moved, flops = len(ACCESSES) * n * ELEMENT_BYTES[dtype], len(OPERATIONS) * n
    return Work(intensity=float(fractions.Fraction(flops, moved or 1)), flops=flops, bytes=moved)
