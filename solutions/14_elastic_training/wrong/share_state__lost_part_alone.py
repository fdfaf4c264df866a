# expect: elements that rank
# fails: parts, bytes
def share_state(elements: int, ranks: int, lost: int) -> list[tuple[int, int, int, int]]:
    """What has to travel when one rank's part is gone: (source, target, start, stop)."""

    left = [rank for rank in range(ranks) if rank != lost]
    moves = []
    for place, target in enumerate(left):
        start, stop = place * elements // len(left), (place + 1) * elements // len(left)
        for owner in range(ranks):
            keeper = (owner + 1) % ranks
            low = max(start, owner * elements // ranks)
            high = min(stop, (owner + 1) * elements // ranks)
            if owner == lost and low < high and target not in (owner, keeper):
                moves.append((keeper if owner == lost else owner, target, low, high))
    return moves
