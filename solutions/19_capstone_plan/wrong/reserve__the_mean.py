# expect: this is the mean
def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    return round(sum(needed) / len(needed)) if needed else 0
