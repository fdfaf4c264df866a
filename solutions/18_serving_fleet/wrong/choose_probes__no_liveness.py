# expect: liveness = None
# fails: starts, serves
def choose_probes(loads: list[int], busy: int) -> Probes:
    """Probes that match how long this model loads and how long an answer takes under load."""
    readiness = Probe("/ready", 5, busy + 1, 3)
    return Probes(liveness=None, readiness=readiness, startup=Probe("/health", 5, busy + 1, 2 * max(loads) // 5))
