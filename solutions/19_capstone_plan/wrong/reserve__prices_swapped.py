# expect: GPUs to reserve for
def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    count = 0
    while sum(each > count for each in needed) * reserved > len(needed) * on_demand:
        count += 1
    return count
