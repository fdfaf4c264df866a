def simulate(
    schedule: list[list[tuple[str, int]]], forward: list[float], backward: list[float], transfer: float
) -> list[list[float]]:
    """When each action ends, in seconds."""
    arrivals = {}

    def rank_of(number, row):
        clock = 0.0
        for kind, i in row:
            step = 1 if kind == "F" else -1
            if 0 <= number - step < len(schedule):
                while (number, kind, i) not in arrivals:
                    yield f"rank {number}: {kind}{i}"
                clock = max(clock, arrivals[number, kind, i])
            clock += (forward if kind == "F" else backward)[number]
            arrivals[number + step, kind, i] = clock + transfer
            ends[number].append(clock)

    ends = [[] for _ in schedule]
    running = {number: rank_of(number, row) for number, row in enumerate(schedule)}
    while running:
        before = len(arrivals)
        waiting = {number: next(each, None) for number, each in running.items()}
        running = {number: each for number, each in running.items() if waiting[number]}
        if running and len(arrivals) == before:
            raise RuntimeError(", ".join(waiting[number] for number in running))
    return ends
