def make_room(
    running: list[tuple[str, int, list[int]]], free: list[int], block_size: int
) -> tuple[dict[str, list[int]], list[int], list[tuple[str, int]]]:
    """Which requests decode with which blocks, what is free, and which requests wait again."""
    tables, preempted = {}, []
    place = 0
    while place < len(running):
        name, tokens, table = running[place]
        lacks = -(-tokens // block_size) - len(table)
        if lacks <= len(free):
            tables[name] = table + [free.pop() for _ in range(lacks)]
            place += 1
        else:
            last, length, blocks = running.pop()
            free += blocks
            preempted.append((last, length))
    return tables, free, reversed(preempted)
