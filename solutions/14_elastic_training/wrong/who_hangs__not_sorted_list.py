# expect: expected
# fails: chains, records
def who_hangs(records: dict[int, list[Entry]], ranks: int) -> list[int]:
    """The ranks that hold up the others."""
    waiting, awaited = set(), set()
    for rank, entries in records.items():
        if not entries or entries[-1].ended:
            continue
        waiting.add(rank)
        last = entries[-1]
        for other in last.group:
            newest = max((e.number for e in records.get(other, []) if e.group == last.group), default=0)
            if newest < last.number:
                awaited.add(other)
    return awaited - waiting
