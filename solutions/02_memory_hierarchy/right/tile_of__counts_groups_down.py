def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    first = 0
    while program >= min(group_m, tiles_m - first) * tiles_n:
        program -= group_m * tiles_n
        first += group_m
    column, row = divmod(program, min(group_m, tiles_m - first))
    return first + row, column
