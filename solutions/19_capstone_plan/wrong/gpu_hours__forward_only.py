# expect: this counts the forward pass only
def gpu_hours(parameters: float, tokens: float, flops_per_gpu: float, recomputed: bool) -> float:
    """GPU-hours of a training run that nothing interrupts."""
    return 2 * parameters * tokens / flops_per_gpu / HOUR
