def share_state(elements: int, ranks: int, lost: int) -> list[tuple[int, int, int, int]]:
    """What has to travel when one rank's part is gone: (source, target, start, stop)."""

    def owner(element):
        return next(r for r in range(ranks) if element < (r + 1) * elements // ranks)

    left = [rank for rank in range(ranks) if rank != lost]
    moves = []
    for place, target in enumerate(left):
        for element in range(place * elements // len(left), (place + 1) * elements // len(left)):
            had_by = owner(element)
            keeper = (had_by + 1) % ranks
            if target in (had_by, keeper):
                continue
            source = keeper if had_by == lost else had_by
            if moves and moves[-1][0] == source and moves[-1][1] == target and moves[-1][3] == element:
                moves[-1] = (source, target, moves[-1][2], element + 1)
            else:
                moves.append((source, target, element, element + 1))
    return moves
