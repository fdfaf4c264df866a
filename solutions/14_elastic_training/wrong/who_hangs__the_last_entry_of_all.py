# expect: numbers count within a group
# fails: records
def who_hangs(records: dict[int, list[Entry]], ranks: int) -> list[int]:
    """The ranks that hold up the others."""
    waiting, awaited = set(), set()
    for rank, entries in records.items():
        if not entries or entries[-1].ended:
            continue
        waiting.add(rank)
        last = entries[-1]
        for other in last.group:
            newest = records[other][-1].number if records.get(other) else 0
            if newest < last.number:
                awaited.add(other)
    return sorted(awaited - waiting)
