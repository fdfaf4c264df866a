def share_state(elements: int, ranks: int, lost: int) -> list[tuple[int, int, int, int]]:
    """What has to travel when one rank's part is gone: (source, target, start, stop)."""

    def part(place, count):
        return set(range(place * elements // count, (place + 1) * elements // count))

    left = [rank for rank in range(ranks) if rank != lost]
    has = {rank: part(rank, ranks) | part((rank - 1) % ranks, ranks) for rank in left}
    moves = []
    for place, target in enumerate(left):
        for element in part(place, ranks - 1) - has[target]:
            source = next(rank for rank in left if element in has[rank])
            moves.append((source, target, element, element + 1))
    return moves
