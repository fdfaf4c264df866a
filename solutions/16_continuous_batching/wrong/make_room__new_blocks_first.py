# expect: at the beginning of the table
# fails: blocks
def make_room(
    running: list[tuple[str, int, list[int]]], free: list[int], block_size: int
) -> tuple[dict[str, list[int]], list[int], list[tuple[str, int]]]:
    """Who decodes with which blocks, what is free, and who waits again."""
    staying, free, preempted = list(running), list(free), []
    tables = {}
    place = 0
    while place < len(staying):
        name, tokens, table = staying[place]
        lacks = -(-tokens // block_size) - len(table)
        if lacks <= len(free):
            tables[name] = [*(free.pop() for _ in range(lacks)), *table]
            place += 1
        else:
            last, length, blocks = staying.pop()
            free += blocks
            preempted.insert(0, (last, length))
    return tables, free, preempted
