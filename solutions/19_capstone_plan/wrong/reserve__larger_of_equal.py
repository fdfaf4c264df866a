# expect: GPUs to reserve for
def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    count = 0
    while count < max(needed, default=0) and sum(each > count for each in needed) * on_demand >= len(needed) * reserved:
        count += 1
    return count
