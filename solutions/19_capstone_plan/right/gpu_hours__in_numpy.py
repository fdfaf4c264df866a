def gpu_hours(parameters: float, tokens: float, flops_per_gpu: float, recomputed: bool) -> float:
    """GPU-hours of a training run that nothing interrupts."""
    return np.prod([{False: 6, True: 8}[bool(recomputed)], parameters, tokens], dtype=np.float64) / (
        flops_per_gpu * HOUR
    )
