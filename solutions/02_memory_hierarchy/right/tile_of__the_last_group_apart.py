def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    whole = tiles_m // group_m * group_m
    if program < whole * tiles_n:
        column, row = divmod(program % (group_m * tiles_n), group_m)
        return program // (group_m * tiles_n) * group_m + row, column
    column, row = divmod(program - whole * tiles_n, tiles_m - whole)
    return whole + row, column
