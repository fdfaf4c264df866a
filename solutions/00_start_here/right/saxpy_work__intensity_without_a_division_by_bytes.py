def saxpy_work(n: int, dtype: str) -> Work:
    """Bytes, FLOPs and intensity of y ← a·x + y on `n` elements."""
    size = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}.get(dtype)
    if size is None or n < 0:
        raise ValueError(f"n = {n}, dtype = {dtype}")
    return Work(n * size * 3, n + n, 0.0 if n == 0 else 2 / (3 * size))
