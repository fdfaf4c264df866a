def settle(wanted: list[tuple[int, int]], changes: list[tuple[int, int]], now: int, current: int, rules: Rules) -> int:
    """How many replicas there are from now on."""
    latest = wanted[-1][1]
    highest = latest
    for second, number in reversed(wanted):
        if now - second >= rules.window:
            break
        highest = max(highest, number)
    ceiling, floor = current + rules.most_added, current - rules.most_removed
    for second, difference in changes:
        if second > now - rules.period:
            if difference > 0:
                ceiling -= difference
            else:
                floor -= difference
    ceiling, floor = max(ceiling, current), min(floor, current)
    goal = latest if latest > current else min(current, highest)
    return max(floor, min(ceiling, goal))
