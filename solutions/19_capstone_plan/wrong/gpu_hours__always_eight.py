# expect: this counts 8 FLOPs, and the rate counts 6
def gpu_hours(parameters: float, tokens: float, flops_per_gpu: float, recomputed: bool) -> float:
    """GPU-hours of a training run that nothing interrupts."""
    return 8 * parameters * tokens / flops_per_gpu / HOUR
