# expect: divided by `group_m`, although it has fewer rows
def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    group, within = divmod(program, group_m * tiles_n)
    first = group * group_m
    rows = group_m
    return first + within % rows, within // rows
