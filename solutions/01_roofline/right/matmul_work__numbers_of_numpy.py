def matmul_work(m, k, n, bytes_per_element):
    for text, size in zip(("m", "k", "n", "bytes_per_element"), (m, k, n, bytes_per_element), strict=True):
        if size <= 0:
            raise ValueError(f"{text} = {size}")
    a, b, c = np.int64(m) * k, np.int64(k) * n, np.int64(m) * n
    return Work(np.float64(a + b + c) * bytes_per_element, np.int64(2) * c * k)
