def settle(wanted: list[tuple[int, int]], changes: list[tuple[int, int]], now: int, current: int, rules: Rules) -> int:
    """How many replicas there are from now on."""
    recent = [difference for second, difference in changes if now - second < rules.period]
    adds = rules.most_added - sum(max(0, difference) for difference in recent)
    removes = rules.most_removed - sum(max(0, -difference) for difference in recent)
    *earlier, (_, latest) = wanted
    peak = max([number for second, number in earlier if now - second < rules.window], default=latest)
    number = current
    while number < latest and adds > 0:
        number, adds = number + 1, adds - 1
    while number > latest and number > peak and removes > 0:
        number, removes = number - 1, removes - 1
    return number
