def fused_traffic(p: Problem, tiles: list[tuple[int, int]], block_m: int, block_n: int) -> Traffic:
    """Adds up one program after another."""
    element = p.bytes_per_element
    loaded = stored = flops = 0
    for number, (first, end) in enumerate(tiles):
        rows = min(block_m, p.queries - number * block_m)
        loaded += rows * p.head_dim * element
        stored += rows * p.head_dim * element + 4 * rows
        for tile in range(first, end):
            loaded += 2 * min(block_n, p.keys - tile * block_n) * p.head_dim * element
            flops += 2 * (2 * block_m * block_n * p.head_dim)
    programs = p.batch * p.heads
    return Traffic(programs * loaded, programs * stored, programs * flops)


def choose_blocks(p: Problem, options: list[Option], chip: Chip) -> tuple[int, int]:
    """Keeps the best so far."""
    best, least = None, math.inf
    for each in options:
        if (each.block_m + 2 * each.block_n) * p.head_dim * p.bytes_per_element > chip.room:
            continue
        traffic = fused_traffic(p, each.tiles, each.block_m, each.block_n)
        if (time := time_us(traffic, each.block_m, each.block_n, chip)) < least:
            best, least = (each.block_m, each.block_n), time
    return best
