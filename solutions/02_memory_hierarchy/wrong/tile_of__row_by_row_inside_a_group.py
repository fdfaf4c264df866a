# expect: row by row inside a group
def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    group, within = divmod(program, group_m * tiles_n)
    first = group * group_m
    rows = min(group_m, tiles_m - first)
    return first + within // tiles_n, within % tiles_n
