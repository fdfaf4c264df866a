def _naive(elements, element_size, ranks, link):
    return 2 * link(elements * element_size * (ranks - 1))


def _ring(elements, element_size, ranks, link):
    return (2 * ranks - 2) * link(-(-elements // ranks) * element_size)


def _doubling(elements, element_size, ranks, link):
    if bin(ranks).count("1") != 1:
        raise ValueError(f"recursive doubling cannot run with ranks = {ranks}")
    return math.log2(ranks) * link(elements * element_size)


MODELS = {"naive": _naive, "ring": _ring, "doubling": _doubling}


def all_reduce_seconds(algorithm, elements, element_size, ranks, alpha, beta):
    return MODELS[algorithm](elements, element_size, ranks, lambda size: alpha + size / beta)


def fastest_all_reduce(elements, element_size, ranks, alpha, beta):
    found = {}
    for name in MODELS:
        try:
            found[name] = all_reduce_seconds(name, elements, element_size, ranks, alpha, beta)
        except ValueError:
            continue
    return sorted(found, key=found.get)[0]
