def make_room(
    running: list[tuple[str, int, list[int]]], free: list[int], block_size: int
) -> tuple[dict[str, list[int]], list[int], list[tuple[str, int]]]:
    """Who decodes with which blocks, what is free, and who waits again."""
    needs = [-(-tokens // block_size) - len(table) for _, tokens, table in running]
    stay = len(running)
    while sum(needs[:stay]) > len(free) + sum(len(table) for _, _, table in running[stay:]):
        stay -= 1
    pool = [*free]
    for _, _, table in running[stay:]:
        pool.extend(table)
    tables = {}
    for (name, _, table), need in zip(running[:stay], needs, strict=False):
        tables[name] = table + pool[:need]
        pool = pool[need:]
    return tables, pool, [(name, tokens) for name, tokens, _ in running[stay:]]
