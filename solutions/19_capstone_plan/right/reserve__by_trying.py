def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""

    def cost(count):
        return count * reserved * len(needed) + on_demand * sum(max(each - count, 0) for each in needed)

    best, least = 0, cost(0)
    for count in range(1, max(needed, default=0) + 1):
        if cost(count) < least - 1e-9 * abs(least):
            best, least = count, cost(count)
    return best
