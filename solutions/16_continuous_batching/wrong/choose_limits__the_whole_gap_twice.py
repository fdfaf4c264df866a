# expect: documents
def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    return 128, int(2 * workload.gap / 16e-6)
