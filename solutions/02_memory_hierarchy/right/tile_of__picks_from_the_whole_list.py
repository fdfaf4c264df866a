def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    order = sorted(
        ((row, column) for row in range(tiles_m) for column in range(tiles_n)),
        key=lambda tile: (tile[0] // group_m, tile[1], tile[0]),
    )
    return order[program]
