def matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int:
    """Bytes that all programs of a tiled (m, k) @ (k, n) ask for."""
    elements = 0
    for top in range(0, m, block_m):
        height = min(block_m, m - top)
        for side in range(0, n, block_n):
            width = min(block_n, n - side)
            elements += height * k + k * width + height * width
    return elements * bytes_per_element
