def visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """Bounds of all blocks at once."""
    top = np.arange(0, p.queries, block_m)
    after = np.minimum(top + block_m, p.queries)
    restricted = p.causal or p.window is not None
    high = np.clip(after + p.keys - p.queries, 0, p.keys) if restricted else np.full_like(top, p.keys)
    low = np.zeros_like(top)
    if p.window is not None:
        low = np.maximum(low, top + p.keys - p.queries - p.window + 1)
    first, end = low // block_n, (high + block_n - 1) // block_n
    empty = high <= low
    return list(zip(np.where(empty, 0, first).tolist(), np.where(empty, 0, end).tolist(), strict=True))
