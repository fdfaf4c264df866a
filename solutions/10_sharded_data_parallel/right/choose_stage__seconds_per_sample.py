def choose_stage(
    parameters: int, ranks: int, gpu_bytes: int, sample_bytes: int, sample_seconds: float, bandwidth: float
) -> Plan:
    """The stage and batch with the highest rate."""
    piece = (parameters + ranks - 1) // ranks
    once = 2 * parameters * (ranks - 1) / ranks / bandwidth
    found = {}
    for stage in 0, 1, 2, 3:
        free = gpu_bytes
        for number, width in enumerate((12, 2, 2), start=1):
            free -= width * (piece if number <= stage else parameters)
        if free >= sample_bytes:
            batch = free // sample_bytes
            found[stage] = batch, (sample_seconds + (2 + stage // 3) * once / batch) / ranks
    if not found:
        raise ValueError(f"gpu_bytes = {gpu_bytes} is too little")
    stage, (batch, each) = min(found.items(), key=lambda item: (item[1][1], item[0]))
    return Plan(stage, batch, 1 / each)
