def simulate(
    schedule: list[list[tuple[str, int]]], forward: list[float], backward: list[float], transfer: float
) -> list[list[float]]:
    """When each action ends, in seconds."""
    import heapq

    last = len(schedule) - 1
    inbox = [{} for _ in schedule]
    free, ends, events = [0.0] * len(schedule), [[] for _ in schedule], []

    def work(rank):
        row = schedule[rank]
        while len(ends[rank]) < len(row):
            kind, i = row[len(ends[rank])]
            alone = rank == (0 if kind == "F" else last)
            if not alone and (kind, i) not in inbox[rank]:
                return
            begin = free[rank] if alone else max(free[rank], inbox[rank][kind, i])
            free[rank] = begin + {"F": forward, "B": backward}[kind][rank]
            ends[rank].append(free[rank])
            other = rank + (1 if kind == "F" else -1)
            if 0 <= other <= last:
                heapq.heappush(events, (free[rank] + transfer, other, kind, i))

    for rank in range(len(schedule)):
        work(rank)
    while events:
        at, rank, kind, i = heapq.heappop(events)
        inbox[rank][kind, i] = at
        work(rank)
    left = [(rank, row[len(ends[rank])]) for rank, row in enumerate(schedule) if len(ends[rank]) < len(row)]
    if left:
        raise RuntimeError("; ".join(f"rank {rank}: {kind}{i} cannot begin" for rank, (kind, i) in left))
    return ends
