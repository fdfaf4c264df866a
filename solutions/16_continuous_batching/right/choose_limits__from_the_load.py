def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    step = 0.9 * workload.gap
    budget = min(1000, int(step / 16e-6))
    context = sum(workload.prompts) / 2 + sum(workload.outputs) / 2
    needed = 2 * workload.rate * workload.outputs[1] * workload.gap
    most = (step - 0.005) / 40e-9 / context
    return int(max(1, min(needed, most))), budget
