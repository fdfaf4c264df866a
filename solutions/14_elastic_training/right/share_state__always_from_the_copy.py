def share_state(elements: int, ranks: int, lost: int) -> list[tuple[int, int, int, int]]:
    """What has to travel when one rank's part is gone: (source, target, start, stop)."""
    place_of = {rank: place for place, rank in enumerate(r for r in range(ranks) if r != lost)}
    new_rank = [
        rank
        for rank, p in place_of.items()
        for _ in range(p * elements // len(place_of), (p + 1) * elements // len(place_of))
    ]
    old_rank = [rank for rank in range(ranks) for _ in range(rank * elements // ranks, (rank + 1) * elements // ranks)]
    moves = []
    for element, (old, new) in enumerate(zip(old_rank, new_rank, strict=True)):
        keeper = (old + 1) % ranks
        if new not in (old, keeper):
            moves.append([old if keeper == lost else keeper, new, element, element + 1])
    return moves
