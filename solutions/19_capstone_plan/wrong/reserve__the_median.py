# expect: GPUs to reserve for
def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    return sorted(needed)[len(needed) // 2] if needed else 0
