def make_room(
    running: list[tuple[str, int, list[int]]], free: list[int], block_size: int
) -> tuple[dict[str, list[int]], list[int], list[tuple[str, int]]]:
    """Who decodes with which blocks, what is free, and who waits again."""
    from collections import deque

    queue, left, gone, tables = deque(running), deque(free), deque(), {}
    while queue:
        name, tokens, table = queue.popleft()
        own = list(table)
        while len(own) * block_size < tokens:
            if left:
                own.append(left.popleft())
            elif queue:
                other, length, blocks = queue.pop()
                left.extendleft(blocks)
                gone.appendleft((other, length))
            else:
                left.extend(own)
                gone.appendleft((name, tokens))
                break
        else:
            tables[name] = own
    return tables, sorted(left), list(gone)
