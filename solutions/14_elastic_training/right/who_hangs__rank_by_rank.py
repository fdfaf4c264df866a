def who_hangs(records: dict[int, list[Entry]], ranks: int) -> list[int]:
    """The ranks that hold up the others."""

    def waits_in(rank):
        entries = records.get(rank) or []
        return entries[-1] if entries and not entries[-1].ended else None

    def entered(rank, entry):
        return any(e.group == entry.group and e.number >= entry.number for e in records.get(rank, []))

    found = []
    for rank in range(ranks):
        stuck = [waits_in(other) for other in range(ranks)]
        if waits_in(rank) is None and any(e and rank in e.group and not entered(rank, e) for e in stuck):
            found.append(rank)
    return found
