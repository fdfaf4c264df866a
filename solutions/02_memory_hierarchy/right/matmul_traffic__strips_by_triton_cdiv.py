def matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int:
    """Bytes that all programs of a tiled (m, k) @ (k, n) ask for."""
    of_a = triton.cdiv(n, block_n) * m * k
    of_b = triton.cdiv(m, block_m) * k * n
    return bytes_per_element * sum((of_a, of_b, m * n))
