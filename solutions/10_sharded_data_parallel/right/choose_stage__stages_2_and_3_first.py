def choose_stage(
    parameters: int, ranks: int, gpu_bytes: int, sample_bytes: int, sample_seconds: float, bandwidth: float
) -> Plan:
    """The stage and batch with the highest rate."""
    cut = -(-parameters // ranks)

    def batch_of_stage(stage):
        states = 2 * [parameters, cut][stage > 2] + 2 * [parameters, cut][stage > 1] + 12 * [parameters, cut][stage > 0]
        return max(0, (gpu_bytes - states) // sample_bytes)

    def rate(stage):
        batch, transfer = batch_of_stage(stage), 2 * parameters / bandwidth * (ranks - 1) / ranks
        return batch * ranks / (batch * sample_seconds + [2, 2, 2, 3][stage] * transfer) if batch else 0.0

    if not batch_of_stage(3):
        raise ValueError(f"expected more memory than gpu_bytes = {gpu_bytes}")
    largest = batch_of_stage(2)
    stage = next(stage for stage in range(3) if batch_of_stage(stage) == largest)
    if rate(3) > rate(stage):
        stage = 3
    return Plan(stage, batch_of_stage(stage), rate(stage))
