# expect: count k multiply-adds per result
# fails: values
def matmul_work(m: int, k: int, n: int, bytes_per_element: float) -> Work:
    """(m, k) @ (k, n) → (m, n)."""
    for name, value in {"m": m, "k": k, "n": n, "bytes_per_element": bytes_per_element}.items():
        if not value > 0:
            raise ValueError(f"{name} = {value}: expected a positive number")
    return Work((m * k + k * n + m * n) * bytes_per_element, m * n * (2 * k - 1))
