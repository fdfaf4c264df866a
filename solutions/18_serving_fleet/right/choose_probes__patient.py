def choose_probes(loads: list[int], busy: int) -> Probes:
    """Each number from its limit: half of the time between the least and the most that is allowed."""
    allowed = (1.5 * max(loads) + 3 * max(loads)) / 2
    period = 3
    return Probes(
        Probe("/health", 9, 8, 5, delay=2),
        Probe("/ready", 6, 8, 2, delay=1),
        Probe("/health", period, 8, round(allowed / period)),
    )
