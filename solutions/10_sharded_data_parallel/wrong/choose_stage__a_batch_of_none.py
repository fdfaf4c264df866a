# expect: batch=0
# fails: plan
def choose_stage(
    parameters: int, ranks: int, gpu_bytes: int, sample_bytes: int, sample_seconds: float, bandwidth: float
) -> Plan:
    """The stage and batch with the highest rate."""
    piece, plans = -(-parameters // ranks), []
    for stage in range(4):
        elements = [piece if stage >= cut_from else parameters for cut_from in (3, 2, 1)]
        states = 2 * elements[0] + 2 * elements[1] + 12 * elements[2]
        batch = (gpu_bytes - states) // sample_bytes
        transfers = 3 if stage == 3 else 2
        communication = transfers * (ranks - 1) / ranks * 2 * parameters / bandwidth
        if batch >= 0:
            plans.append(Plan(stage, batch, ranks * batch / (batch * sample_seconds + communication)))
    if not plans:
        raise ValueError(f"gpu_bytes = {gpu_bytes}: not even one sample fits, in any stage")
    return max(plans, key=lambda plan: plan.samples_per_second)
