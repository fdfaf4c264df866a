# expect: a replica loads for 62 s and is warm at second 72: it gets requests from second 65 on
# fails: starts, serves
def choose_probes(loads: list[int], busy: int) -> Probes:
    """Probes that match how long this model loads and how long an answer takes under load."""
    return Probes(
        liveness=Probe("/health", period=10, timeout=busy + 1, failures=3),
        readiness=Probe("/health", period=5, timeout=busy + 1, failures=3),
        startup=Probe("/health", period=2, timeout=busy + 1, failures=max(loads)),
    )
