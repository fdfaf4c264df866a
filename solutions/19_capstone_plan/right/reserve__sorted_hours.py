def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    if not needed:
        return 0
    ordered = sorted(needed, reverse=True)
    place = math.floor(len(ordered) * reserved / on_demand + 1e-12)
    return ordered[place] if place < len(ordered) else 0
