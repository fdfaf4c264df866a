def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    hours = np.asarray(needed, dtype=int)
    if hours.size == 0:
        return 0
    used = np.array([(hours > level).sum() for level in range(hours.max())], dtype=float)
    return int((used * on_demand > hours.size * reserved).sum())
