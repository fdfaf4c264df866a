def saxpy_work(n: int, dtype: str) -> Work:
    """Bytes, FLOPs and intensity of y ← a·x + y on `n` elements."""
    try:
        size = ELEMENT_BYTES[dtype]
    except KeyError as error:
        raise ValueError(f"unknown dtype {dtype}") from error
    if not n >= 0:
        raise ValueError("negative n: " + str(n))
    reads, writes = 2 * n * size, n * size
    work = Work(reads + writes, 2 * n, 0.0)
    return replace(work, intensity=work.flops / work.bytes) if n > 0 else work
