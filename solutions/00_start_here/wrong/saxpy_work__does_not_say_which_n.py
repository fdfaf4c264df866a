# expect: contains '-1'
# fails: edges
def saxpy_work(n: int, dtype: str) -> Work:
    """Bytes, FLOPs and intensity of y ← a·x + y on `n` elements."""
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype = {dtype!r}: expected one of {', '.join(ELEMENT_BYTES)}")
    if n < 0:
        raise ValueError("n must not be negative")
    moved = 3 * n * ELEMENT_BYTES[dtype]
    flops = 2 * n
    return Work(bytes=moved, flops=flops, intensity=flops / moved if moved else 0.0)
