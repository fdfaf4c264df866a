def fused_traffic(p: Problem, tiles: list[tuple[int, int]], block_m: int, block_n: int) -> Traffic:
    """Bounds as arrays."""
    first, end = np.array(tiles).reshape(-1, 2).T
    rows = int((np.minimum(end * block_n, p.keys) - first * block_n).sum())
    count, width = p.batch * p.heads, p.head_dim * p.bytes_per_element
    return Traffic(
        count * p.queries * width + 2 * count * rows * width,
        count * p.queries * width + 4 * count * p.queries,
        count * int((end - first).sum()) * 4 * block_m * block_n * p.head_dim,
    )


def choose_blocks(p: Problem, options: list[Option], chip: Chip) -> tuple[int, int]:
    """Sorts the options by time, and takes the first that fits."""
    timed = []
    for each in options:
        traffic = fused_traffic(p, each.tiles, each.block_m, each.block_n)
        timed.append((time_us(traffic, each.block_m, each.block_n, chip), each.block_m, each.block_n))
    for _, block_m, block_n in sorted(timed):
        if p.bytes_per_element * p.head_dim * (block_m + block_n + block_n) <= chip.room:
            return block_m, block_n
    raise ValueError(f"no option fits into {chip.room} bytes")
