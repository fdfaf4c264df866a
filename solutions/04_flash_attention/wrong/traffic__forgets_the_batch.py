# expect: every batch and head does it again
# caught: hidden
def visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """First and end of the visited tiles of keys, for each block of queries."""
    found = []
    for top in range(0, p.queries, block_m):
        bottom = min(top + block_m, p.queries) - 1
        offset = p.keys - p.queries
        low, high = 0, p.keys
        if p.causal or p.window is not None:
            high = min(p.keys, bottom + offset + 1)
        if p.window is not None:
            low = max(0, top + offset - p.window + 1)
        found.append((low // block_n, -(-high // block_n)) if low < high else (0, 0))
    return found


def fused_traffic(p: Problem, block_m: int, block_n: int) -> Traffic:
    """What a fused kernel asks for."""
    tiles = visible_tiles(p, block_m, block_n)
    rows = sum(min(end * block_n, p.keys) - first * block_n for first, end in tiles)
    visited = sum(end - first for first, end in tiles)
    each = p.heads
    width = p.head_dim * p.bytes_per_element
    return Traffic(
        loaded=each * (p.queries + 2 * rows) * width,
        stored=each * p.queries * (width + 4),
        dot_flops=each * visited * 4 * block_m * block_n * p.head_dim,
    )


def naive_traffic(p: Problem) -> Traffic:
    """What three kernels with the scores in memory between them ask for."""
    each, scores = p.batch * p.heads, p.queries * p.keys
    queries, keys = p.queries * p.head_dim, p.keys * p.head_dim
    return Traffic(
        loaded=each * (queries + keys + scores + scores + keys) * p.bytes_per_element,
        stored=each * (scores + scores + queries) * p.bytes_per_element,
        dot_flops=each * 4 * scores * p.head_dim,
    )
