def visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """Looks at every pair of query and key."""

    def sees(i: int, j: int) -> bool:
        distance = i + p.keys - p.queries - j
        if p.window is None:
            return distance >= 0 or not p.causal
        return 0 <= distance < p.window

    result = []
    for top in range(0, p.queries, block_m):
        block = range(top, min(top + block_m, p.queries))
        tiles = {j // block_n for i in block for j in range(p.keys) if sees(i, j)}
        result.append((min(tiles), max(tiles) + 1) if tiles else (0, 0))
    return result
