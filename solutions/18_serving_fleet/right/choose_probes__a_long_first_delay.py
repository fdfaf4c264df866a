def choose_probes(loads: list[int], busy: int) -> Probes:
    """The startup probe begins when the quickest start may have ended, and then asks every second."""
    slowest, quickest = max(loads), min(loads)
    startup = Probe("/health", 1, busy, int(2.5 * slowest) - quickest, delay=quickest)
    return Probes(
        startup=startup,
        readiness=Probe("/ready", 3, busy, 4),
        liveness=Probe("/health", 5, busy, 5),
    )
