# expect: long chat
def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    return 256, int(0.8 * workload.gap / 16e-6)
