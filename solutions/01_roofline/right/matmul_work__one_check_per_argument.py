def matmul_work(m: int, k: int, n: int, bytes_per_element: float) -> Work:
    """(m, k) @ (k, n) → (m, n)."""
    if m < 1:
        raise ValueError(f"m = {m}")
    if k < 1:
        raise ValueError(f"k = {k}")
    if n < 1:
        raise ValueError(f"n = {n}")
    if bytes_per_element <= 0:
        raise ValueError(f"bytes_per_element = {bytes_per_element}")
    read, written = (m + n) * k, m * n
    return Work((read + written) * bytes_per_element, written * k + written * k)
