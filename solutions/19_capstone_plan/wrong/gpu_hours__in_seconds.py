# expect: this is in seconds
def gpu_hours(parameters: float, tokens: float, flops_per_gpu: float, recomputed: bool) -> float:
    """GPU-hours of a training run that nothing interrupts."""
    return (8 if recomputed else 6) * parameters * tokens / flops_per_gpu
