# expect: A is loaded once per column of tiles
def matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int:
    """Bytes that all programs of a tiled (m, k) @ (k, n) ask for."""
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    return (m * k * tiles_m + k * n * tiles_n + m * n) * bytes_per_element
