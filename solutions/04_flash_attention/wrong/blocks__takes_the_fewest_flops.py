# expect: 1.05 times the best
# fails: choice
def fused_traffic(p: Problem, tiles: list[tuple[int, int]], block_m: int, block_n: int) -> Traffic:
    """What a fused kernel asks for."""
    rows = sum(min(end * block_n, p.keys) - first * block_n for first, end in tiles)
    visited = sum(end - first for first, end in tiles)
    each = p.batch * p.heads
    width = p.head_dim * p.bytes_per_element
    return Traffic(
        loaded=each * (p.queries + 2 * rows) * width,
        stored=each * p.queries * (width + 4),
        dot_flops=each * visited * 4 * block_m * block_n * p.head_dim,
    )


def choose_blocks(p: Problem, options: list[Option], chip: Chip) -> tuple[int, int]:
    """The blocks of the fastest option that fits."""
    row = p.head_dim * p.bytes_per_element
    fitting = [each for each in options if (each.block_m + 2 * each.block_n) * row <= chip.room]

    def time_of(each):
        traffic = fused_traffic(p, each.tiles, each.block_m, each.block_n)
        return time_us(traffic, each.block_m, each.block_n, chip)

    best = min(fitting, key=lambda each: fused_traffic(p, each.tiles, each.block_m, each.block_n).dot_flops)
    return best.block_m, best.block_n
