# expect: end of B0 on rank 0
# fails: free, transfers, stuck
def simulate(
    schedule: list[list[tuple[str, int]]], forward: list[float], backward: list[float], transfer: float
) -> list[list[float]]:
    """When each action ends, in seconds."""
    ends, done = [[] for _ in schedule], {}
    for rank, row in enumerate(schedule):
        for kind, i in row:
            source = rank - 1 if kind == "F" else rank + 1
            start = ends[rank][-1] if ends[rank] else 0.0
            start = max(start, done.get((kind, i, source), -transfer) + transfer)
            end = start + (forward if kind == "F" else backward)[rank]
            done[kind, i, rank] = end
            ends[rank].append(end)
    return ends
