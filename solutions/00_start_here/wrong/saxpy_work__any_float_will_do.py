# expect: expected   ValueError with
# fails: edges
# caught: hidden
def saxpy_work(n: int, dtype: str) -> Work:
    """Bytes, FLOPs and intensity of y ← a·x + y on `n` elements."""
    if not dtype.startswith(("float", "bfloat")):
        raise ValueError(f"dtype = {dtype!r}: expected one of {', '.join(ELEMENT_BYTES)}")
    if n < 0:
        raise ValueError(f"n = {n}: expected a number of elements, 0 or more")
    moved = 3 * n * int(dtype.split("float")[1]) // 8
    return Work(bytes=moved, flops=2 * n, intensity=2 * n / moved if moved else 0.0)
