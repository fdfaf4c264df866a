def make_room(
    running: list[tuple[str, int, list[int]]], free: list[int], block_size: int
) -> tuple[dict[str, list[int]], list[int], list[tuple[str, int]]]:
    """Which requests decode with which blocks, what is free, and which requests wait again."""
    staying = running.copy()
    tables, preempted, place = {}, [], 0
    while place < len(staying):
        name, tokens, table = staying[place]
        lacks = -(-tokens // block_size) - len(table)
        if lacks <= len(free):
            table.extend(free.pop() for _ in range(lacks))
            tables[name] = table
            place += 1
        else:
            last, length, blocks = staying.pop()
            free.extend(blocks)
            preempted.append((last, length))
    return tables, free, preempted[::-1]
