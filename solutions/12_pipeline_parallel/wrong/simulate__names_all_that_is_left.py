# expect: and no others, but it names
# fails: stuck
def simulate(
    schedule: list[list[tuple[str, int]]], forward: list[float], backward: list[float], transfer: float
) -> list[list[float]]:
    """When each action ends, in seconds."""
    ends, done, going_on = [[] for _ in schedule], {}, True
    while going_on:
        going_on = False
        for rank, row in enumerate(schedule):
            while len(ends[rank]) < len(row):
                kind, i = row[len(ends[rank])]
                source = rank - 1 if kind == "F" else rank + 1
                start = ends[rank][-1] if ends[rank] else 0.0
                if 0 <= source < len(schedule):
                    if (kind, i, source) not in done:
                        break
                    start = max(start, done[kind, i, source] + transfer)
                end = start + (forward if kind == "F" else backward)[rank]
                done[kind, i, rank] = end
                ends[rank].append(end)
                going_on = True
    stuck = [f"rank {rank}: {kind}{i}" for rank, row in enumerate(schedule) for kind, i in row[len(ends[rank]) :]]
    if stuck:
        raise RuntimeError(f"waiting forever: {', '.join(stuck)}")
    return ends
