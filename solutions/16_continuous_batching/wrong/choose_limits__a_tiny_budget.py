# expect: documents
def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    return 256, 64
