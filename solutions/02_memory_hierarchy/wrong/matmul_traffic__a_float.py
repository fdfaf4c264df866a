# expect: an int, 17520
def matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int:
    return bytes_per_element * (m * k * np.ceil(n / block_n) + k * n * np.ceil(m / block_m) + m * n)
