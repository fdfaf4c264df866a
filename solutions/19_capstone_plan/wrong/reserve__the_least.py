# expect: this is what every hour needs
def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    return min(needed, default=0)
