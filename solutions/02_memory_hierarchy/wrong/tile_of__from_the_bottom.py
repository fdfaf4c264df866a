# expect: the order of 4 × 3 tiles
def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    group, within = divmod(program, group_m * tiles_n)
    first = group * group_m
    rows = min(group_m, tiles_m - first)
    return first + rows - 1 - within % rows, within // rows
