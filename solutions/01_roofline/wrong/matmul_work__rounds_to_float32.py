# expect: matmul_work(1, 4097, 4099, 1)
# fails: values
def matmul_work(m: int, k: int, n: int, bytes_per_element: float) -> Work:
    """(m, k) @ (k, n) → (m, n)."""
    for name, value in {"m": m, "k": k, "n": n, "bytes_per_element": bytes_per_element}.items():
        if not value > 0:
            raise ValueError(f"{name} = {value}: expected a positive number")
    m, k, n = np.float32([m, k, n])
    return Work(float(m * k + k * n + m * n) * bytes_per_element, float(2 * m * k * n))
