def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def matmul_work(m, k, n, bytes_per_element):
    if min(m, k, n, bytes_per_element) <= 0:
        for name in ("m", "k", "n", "bytes_per_element"):
            if locals()[name] <= 0:
                raise ValueError(name + " = " + str(locals()[name]) + " is too small")
    moved = sum(elements(shape) for shape in [(m, k), (k, n), (m, n)])
    return Work(bytes=moved * bytes_per_element, flops=2 * elements((m, n, k)))
