# expect: expected
# fails: choice
def all_reduce_seconds(
    algorithm: str, elements: int, element_size: int, ranks: int, alpha: float, beta: float
) -> float:
    """Seconds of an all-reduce of `elements` on `ranks` ranks."""
    size = elements * element_size
    if algorithm == "naive":
        return 2 * (alpha + (ranks - 1) * size / beta)
    if algorithm == "ring":
        return 2 * (ranks - 1) * (alpha + math.ceil(elements / ranks) * element_size / beta)
    if ranks & (ranks - 1):
        raise ValueError(f"ranks = {ranks}: recursive doubling needs a power of two")
    return (ranks.bit_length() - 1) * (alpha + size / beta)


def fastest_all_reduce(elements: int, element_size: int, ranks: int, alpha: float, beta: float) -> str:
    """The name of the fastest algorithm."""
    names = ["naive", "ring", "doubling"] if ranks & (ranks - 1) == 0 else ["naive", "ring"]
    return max(names, key=lambda name: all_reduce_seconds(name, elements, element_size, ranks, alpha, beta))
