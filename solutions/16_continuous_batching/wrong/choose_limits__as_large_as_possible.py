# expect: 98% a gap of more than 20 ms
def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    return 1024, 8192
