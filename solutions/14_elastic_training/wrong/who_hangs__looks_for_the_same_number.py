# expect: although its entry is no longer there
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
            if all((e.number, e.group) != (last.number, last.group) for e in records.get(other, [])):
                awaited.add(other)
    return sorted(awaited - waiting)
