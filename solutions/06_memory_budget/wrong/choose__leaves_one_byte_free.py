# expect: 8 GB
# fails: outcome
def choose_plan(job: Job, margin: float) -> Plan:
    """A plan that fits with the margin, and takes hardly longer than the fastest that does."""
    segments = [0] + [k for k in range(1, job.layers + 1) if job.layers % k == 0]
    plans = [
        Plan(micro, k, offload)
        for micro in range(1, job.batch + 1)
        for k in segments
        for offload in (False, True)
        if needs(job, Plan(micro, k, offload)) < (1 - margin) * job.capacity
    ]
    if not plans:
        raise ValueError(f"capacity = {job.capacity:g}: no plan fits with a margin of {margin:.0%}")
    return min(plans, key=lambda plan: duration(job, plan))
