# expect: a process that hangs 10 s after it became warm is restarted 70 s later
# fails: serves
def choose_probes(loads: list[int], busy: int) -> Probes:
    """Probes that match how long this model loads and how long an answer takes under load."""
    return Probes(
        liveness=Probe("/health", period=10, timeout=busy + 1, failures=3, delay=max(loads) * 3 // 2),
        readiness=Probe("/ready", period=5, timeout=busy + 1, failures=3),
    )
