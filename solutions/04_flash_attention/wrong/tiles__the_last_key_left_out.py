# expect: j < i + (keys − queries)
# fails: mask, window
def visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """First and end of the visited tiles of keys, for each block of queries."""
    found = []
    for top in range(0, p.queries, block_m):
        bottom = min(top + block_m, p.queries) - 1
        offset = p.keys - p.queries
        low, high = 0, p.keys
        if p.causal or p.window is not None:
            high = min(p.keys, bottom + offset)
        if p.window is not None:
            low = max(0, top + offset - p.window + 1)
        found.append((low // block_n, -(-high // block_n)) if low < high else (0, 0))
    return found
