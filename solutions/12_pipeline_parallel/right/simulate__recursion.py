def simulate(
    schedule: list[list[tuple[str, int]]], forward: list[float], backward: list[float], transfer: float
) -> list[list[float]]:
    """When each action ends, in seconds."""
    import functools
    import sys

    sys.setrecursionlimit(10000)
    place = {(rank, kind, i): n for rank, row in enumerate(schedule) for n, (kind, i) in enumerate(row)}
    under_way = set()

    @functools.cache
    def end_of(rank, position):
        """None where it never begins."""
        if (rank, position) in under_way:
            return None
        under_way.add((rank, position))
        kind, i = schedule[rank][position]
        earliest = end_of(rank, position - 1) if position else 0.0
        other = rank - 1 if kind == "F" else rank + 1
        if earliest is not None and 0 <= other < len(schedule):
            needed = place.get((other, kind, i))
            there = None if needed is None else end_of(other, needed)
            earliest = None if there is None else max(earliest, there + transfer)
        under_way.remove((rank, position))
        return None if earliest is None else earliest + (forward, backward)[kind == "B"][rank]

    def possible():
        """How far each row gets: those that can begin one after another."""
        at, moved = [0] * len(schedule), True
        while moved:
            moved = False
            for rank, row in enumerate(schedule):
                if at[rank] < len(row):
                    kind, i = row[at[rank]]
                    other = rank - 1 if kind == "F" else rank + 1
                    if not 0 <= other < len(schedule) or place.get((other, kind, i), 10**9) < at[other]:
                        at[rank] += 1
                        moved = True
        return at

    stuck = [(rank, at) for rank, at in enumerate(possible()) if at < len(schedule[rank])]
    if stuck:
        names = [f"rank {rank}: {''.join(map(str, schedule[rank][at]))}" for rank, at in stuck]
        raise RuntimeError(" and ".join(names))
    return [[end_of(rank, position) for position in range(len(row))] for rank, row in enumerate(schedule)]
