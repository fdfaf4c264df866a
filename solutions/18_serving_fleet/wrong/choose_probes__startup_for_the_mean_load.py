# expect: a start that loads for 140 s is restarted after 86 s, 7 times in 620 s
# fails: starts, serves
def choose_probes(loads: list[int], busy: int) -> Probes:
    """Probes that match how long this model loads and how long an answer takes under load."""
    return Probes(
        liveness=Probe("/health", period=10, timeout=busy + 1, failures=3),
        readiness=Probe("/ready", period=5, timeout=busy + 1, failures=3),
        startup=Probe("/health", period=2, timeout=busy + 1, failures=sum(loads) // len(loads) // 2),
    )
