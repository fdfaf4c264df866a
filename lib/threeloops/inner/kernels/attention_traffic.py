"""Exact traffic."""


def tile_traffic():
    pass
