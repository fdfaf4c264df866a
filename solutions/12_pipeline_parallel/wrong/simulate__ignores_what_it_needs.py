# expect: end of F0 on rank 1
# fails: free, transfers
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
                if 0 <= source < len(schedule) and (kind, i, source) not in done:
                    break
                end = start + (forward if kind == "F" else backward)[rank]
                done[kind, i, rank] = end
                ends[rank].append(end)
                going_on = True
    stuck = [
        f"rank {rank}: {row[len(ends[rank])][0]}{row[len(ends[rank])][1]}"
        for rank, row in enumerate(schedule)
        if len(ends[rank]) < len(row)
    ]
    if stuck:
        raise RuntimeError(f"waiting forever: {', '.join(stuck)}")
    return ends
