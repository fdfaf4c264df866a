def who_hangs(records: dict[int, list[Entry]], ranks: int) -> list[int]:
    """The ranks that hold up the others."""

    def entry(rank):
        mine = records.get(rank, [])
        return mine[-1] if mine and not mine[-1].ended else None

    roots, seen = set(), set()
    queue = [rank for rank in range(ranks) if entry(rank)]
    while queue:
        rank = queue.pop()
        if rank in seen:
            continue
        seen.add(rank)
        last = entry(rank)
        for other in last.group:
            numbers = [e.number for e in records.get(other, []) if e.group == last.group]
            if not numbers or max(numbers) < last.number:
                if entry(other):
                    queue.append(other)
                else:
                    roots.add(other)
    return sorted(roots)
