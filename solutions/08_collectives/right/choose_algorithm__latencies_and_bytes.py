def _counts(algorithm, elements, ranks):
    """Latencies, and elements through the busiest port, one after another."""
    if algorithm == "naive":
        return 2, 2 * (ranks - 1) * elements
    if algorithm == "ring":
        chunk, rest = divmod(elements, ranks)
        return 2 * (ranks - 1), 2 * (ranks - 1) * (chunk + (rest > 0))
    steps = round(math.log2(ranks))
    if 1 << steps != ranks:
        raise ValueError(f"doubling: ranks = {ranks}, expected 2, 4, 8, …")
    return steps, steps * elements


def all_reduce_seconds(algorithm, elements, element_size, ranks, alpha, beta):
    latencies, through = _counts(algorithm, elements, ranks)
    return latencies * alpha + through * element_size / beta


def fastest_all_reduce(elements, element_size, ranks, alpha, beta):
    candidates = ["naive", "ring"]
    if math.log2(ranks).is_integer():
        candidates.append("doubling")
    times = [all_reduce_seconds(name, elements, element_size, ranks, alpha, beta) for name in candidates]
    return candidates[times.index(min(times))]
