# expect: extraction
def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    return 16, 312
