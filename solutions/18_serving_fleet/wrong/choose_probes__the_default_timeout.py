# expect: a busy replica, whose answers take 2 s
# fails: serves
def choose_probes(loads: list[int], busy: int) -> Probes:
    """Probes that match how long this model loads and how long an answer takes under load."""
    return Probes(
        liveness=Probe("/health", period=10, timeout=1, failures=3),
        readiness=Probe("/ready", period=5, timeout=1, failures=3),
        startup=Probe("/health", period=2, timeout=1, failures=max(loads)),
    )
