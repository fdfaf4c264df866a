def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    return {"documents": (64, 768), "extraction": (256, 512), "long chat": (14, 450)}[workload.name]
