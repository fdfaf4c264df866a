# expect: one of two was removed 30 s ago, so one more may go
# fails: rate
def settle(wanted: list[tuple[int, int]], changes: list[tuple[int, int]], now: int, current: int, rules: Rules) -> int:
    """How many replicas there are from now on."""
    latest = wanted[-1][1]
    highest = max([latest, *(number for second, number in wanted if now - second < rules.window)])
    recent = [difference for second, difference in changes if now - second < rules.period]
    added = sum(difference for difference in recent if difference > 0)
    removed = -sum(difference for difference in recent if difference < 0)
    if latest > current:
        return min(latest, current + rules.most_added - added)
    if highest < current:
        return max(highest, current - rules.most_removed - removed)
    return current
