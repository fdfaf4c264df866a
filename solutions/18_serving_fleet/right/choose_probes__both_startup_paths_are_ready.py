def choose_probes(loads: list[int], busy: int) -> Probes:
    """The startup probe waits until the replica is warm, and readiness then follows within a second or two."""
    most = max(loads)
    startup = Probe("/ready", period=5, timeout=10, failures=math.ceil(2 * most / 5) + 2)
    readiness = Probe("/ready", period=4, timeout=10, failures=5)
    return Probes(Probe("/health", period=15, timeout=10, failures=3), readiness, startup)
