# expect: this is what every hour needs
def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    count = min(needed)
    while sum(each > count for each in needed) * on_demand > len(needed) * reserved:
        count += 1
    return count
