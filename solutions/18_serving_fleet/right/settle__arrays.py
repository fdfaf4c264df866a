def settle(wanted: list[tuple[int, int]], changes: list[tuple[int, int]], now: int, current: int, rules: Rules) -> int:
    """How many replicas there are from now on."""
    times, numbers = np.array(wanted).T
    young = now - times < rules.window
    young[-1] = True
    past = np.array(changes, dtype=int).reshape(-1, 2)
    recent = past[now - past[:, 0] < rules.period, 1]
    if numbers[-1] > current:
        room = max(0, rules.most_added - int(recent.clip(0, None).sum()))
        return int(min(numbers[-1], current + room))
    room = max(0, rules.most_removed + int(recent.clip(None, 0).sum()))
    return int(min(current, max(numbers[young].max(), current - room)))
