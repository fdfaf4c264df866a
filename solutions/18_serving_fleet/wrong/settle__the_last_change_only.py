# expect: of four were added
# fails: rate
def settle(wanted: list[tuple[int, int]], changes: list[tuple[int, int]], now: int, current: int, rules: Rules) -> int:
    """How many replicas there are from now on."""
    latest = wanted[-1][1]
    recent = [d for t, d in changes if now - t < rules.period][-1:]
    if latest > current:
        room = max(0, rules.most_added - sum(d for d in recent if d > 0))
        return min(latest, current + room)
    highest = max([latest] + [n for t, n in wanted if now - t < rules.window])
    if highest < current:
        room = max(0, rules.most_removed - sum(-d for d in recent if d < 0))
        return max(highest, current - room)
    return current
