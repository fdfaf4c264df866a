# expect: on the way up there is no window
# fails: window
def settle(wanted: list[tuple[int, int]], changes: list[tuple[int, int]], now: int, current: int, rules: Rules) -> int:
    """How many replicas there are from now on."""
    latest = wanted[-1][1]
    highest = max([latest, *(number for second, number in wanted if now - second < rules.window)])
    recent = [difference for second, difference in changes if now - second < rules.period]
    added = sum(difference for difference in recent if difference > 0)
    removed = -sum(difference for difference in recent if difference < 0)
    latest = min([latest, *(number for second, number in wanted if now - second < rules.window)])
    if latest > current:
        return min(latest, current + max(0, rules.most_added - added))
    if highest < current:
        return max(highest, current - max(0, rules.most_removed - removed))
    return current
