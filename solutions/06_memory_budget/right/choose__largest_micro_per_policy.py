def choose_plan(job: Job, margin: float) -> Plan:
    """For each policy the largest microbatch that fits is the fastest: fewer of them have less overhead."""
    allowed, best = (1 - margin) * job.capacity, None
    for k in [0, *(k for k in range(1, job.layers + 1) if job.layers % k == 0)]:
        for offload in (False, True):
            one = needs(job, Plan(1, k, offload))
            each = needs(job, Plan(2, k, offload)) - one
            micro = min(job.batch, 1 + int((allowed - one) // each)) if one <= allowed else 0
            if micro and (best is None or duration(job, Plan(micro, k, offload)) < duration(job, best)):
                best = Plan(micro, k, offload)
    if best is None:
        raise ValueError(f"capacity = {job.capacity}: nothing fits")
    return best
