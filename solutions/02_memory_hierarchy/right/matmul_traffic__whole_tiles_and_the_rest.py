def matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int:
    """Bytes that all programs of a tiled (m, k) @ (k, n) ask for."""
    elements = 0
    for top in range(0, m, block_m):
        height = min(block_m, m - top)
        whole, rest = divmod(n, block_n)
        elements += whole * (height * k + k * block_n + height * block_n)
        elements += (height * k + k * rest + height * rest) if rest else 0
    return elements * bytes_per_element
