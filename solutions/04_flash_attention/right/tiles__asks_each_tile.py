def visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """Asks every tile whether a query of the block sees one of its keys."""
    shift, found = p.keys - p.queries, []
    for top in range(0, p.queries, block_m):
        positions = [i + shift for i in range(top, min(top + block_m, p.queries))]
        seen = []
        for tile in range(-(-p.keys // block_n)):
            first, last = tile * block_n, min(tile * block_n + block_n, p.keys) - 1
            if p.window is not None:
                touched = any(at >= first and at - p.window < last for at in positions)
            else:
                touched = not p.causal or any(at >= first for at in positions)
            if touched:
                seen.append(tile)
        found.append((seen[0], seen[-1] + 1) if seen else (0, 0))
    return found
