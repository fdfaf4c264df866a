def make_room(
    running: list[tuple[str, int, list[int]]], free: list[int], block_size: int
) -> tuple[dict[str, list[int]], list[int], list[tuple[str, int]]]:
    """Who decodes with which blocks, what is free, and who waits again."""

    def lacks(each):
        return max(0, math.ceil(each[1] / block_size) - len(each[2]))

    if sum(map(lacks, running)) > len(free):
        *others, (name, tokens, table) = running
        tables, left, preempted = make_room(others, free + table, block_size)
        return tables, left, preempted + [(name, tokens)]
    supply = iter(free)
    tables = {each[0]: each[2] + [next(supply) for _ in range(lacks(each))] for each in running}
    return tables, list(supply), []
