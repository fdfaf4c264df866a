def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    longest = workload.prompts[1] + workload.outputs[1]
    seats = np.floor((workload.gap - 5e-3) / (40e-9 * longest)).astype(int)
    return seats, np.int64(round(workload.gap / 16e-6))
