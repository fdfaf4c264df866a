# expect: this is the peak, which stands idle in the other hours
def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    return max(needed, default=0)
