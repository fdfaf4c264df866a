# expect: a replica with a full queue is restarted
# fails: serves
def choose_probes(loads: list[int], busy: int) -> Probes:
    """Probes that match how long this model loads and how long an answer takes under load."""
    return Probes(
        liveness=Probe("/ready", period=10, timeout=busy + 1, failures=3),
        readiness=Probe("/ready", period=5, timeout=busy + 1, failures=3),
        startup=Probe("/health", period=2, timeout=busy + 1, failures=max(loads)),
    )
