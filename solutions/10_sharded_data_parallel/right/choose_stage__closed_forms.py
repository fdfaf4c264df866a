def choose_stage(
    parameters: int, ranks: int, gpu_bytes: int, sample_bytes: int, sample_seconds: float, bandwidth: float
) -> Plan:
    """The stage and batch with the highest rate."""
    p, s = parameters, math.ceil(parameters / ranks)
    best = None
    for stage, states in enumerate((16 * p, 4 * p + 12 * s, 2 * p + 14 * s, 16 * s)):
        batch = int((gpu_bytes - states) // sample_bytes)
        if batch < 1:
            continue
        sent = (4 + 2 * (stage == 3)) * p * (ranks - 1) / ranks
        rate = ranks * batch / (batch * sample_seconds + sent / bandwidth)
        if best is None or rate > best.samples_per_second * (1 + 1e-12):
            best = Plan(stage=stage, batch=batch, samples_per_second=rate)
    if best is None:
        raise ValueError(f"no room: gpu_bytes = {gpu_bytes}")
    return best
