def who_hangs(records: dict[int, list[Entry]], ranks: int) -> list[int]:
    """The ranks that hold up the others."""
    newest = {}
    for rank, entries in records.items():
        for entry in entries:
            key = rank, entry.group
            newest[key] = max(newest.get(key, 0), entry.number)
    edges = {rank: set() for rank in range(ranks)}
    stuck = {rank: entries[-1] for rank, entries in records.items() if entries and not entries[-1].ended}
    for rank, entry in stuck.items():
        edges[rank] = {other for other in entry.group if newest.get((other, entry.group), 0) < entry.number}
    ends = {other for targets in edges.values() for other in targets if other not in stuck}
    return sorted(ends)
