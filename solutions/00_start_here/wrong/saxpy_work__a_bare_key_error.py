# expect: expected   ValueError with 'int32'
# fails: edges
def saxpy_work(n: int, dtype: str) -> Work:
    """Bytes, FLOPs and intensity of y ← a·x + y on `n` elements."""
    if n < 0:
        raise ValueError(f"n = {n}: expected a number of elements, 0 or more")
    moved = 3 * n * ELEMENT_BYTES[dtype]
    flops = 2 * n
    return Work(bytes=moved, flops=flops, intensity=flops / moved if moved else 0.0)
