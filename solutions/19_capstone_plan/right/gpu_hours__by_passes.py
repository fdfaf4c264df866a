def gpu_hours(parameters: float, tokens: float, flops_per_gpu: float, recomputed: bool) -> float:
    """GPU-hours of a training run that nothing interrupts."""
    passes = ["forward", "backward by weights", "backward by inputs"] + ["again"] * recomputed
    per_token = sum(2 for _ in passes) * parameters
    seconds = tokens * per_token / flops_per_gpu
    return seconds / 60 / 60
