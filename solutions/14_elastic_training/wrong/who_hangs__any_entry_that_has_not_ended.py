# expect: its last entry has ended, so it does not wait
# fails: chains
def who_hangs(records: dict[int, list[Entry]], ranks: int) -> list[int]:
    """The ranks that hold up the others."""
    waiting, awaited = set(), set()
    for rank, entries in records.items():
        for entry in (each for each in entries if not each.ended):
            waiting.add(rank)
            for other in entry.group:
                newest = max((e.number for e in records.get(other, []) if e.group == entry.group), default=0)
                if newest < entry.number:
                    awaited.add(other)
    return sorted(awaited - waiting)
