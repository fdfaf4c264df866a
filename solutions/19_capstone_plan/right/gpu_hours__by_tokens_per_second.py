def gpu_hours(parameters: float, tokens: float, flops_per_gpu: float, recomputed: bool) -> float:
    """GPU-hours of a training run that nothing interrupts."""
    rate = flops_per_gpu / ((6 + 2 * bool(recomputed)) * parameters)
    return tokens / rate / HOUR
