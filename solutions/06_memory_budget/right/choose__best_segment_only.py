def choose_plan(job: Job, margin: float) -> Plan:
    """With recomputation all segments take the same time, so only the one that holds the least is tried."""
    divisors = [k for k in range(1, job.layers + 1) if job.layers % k == 0]
    least = min(divisors, key=lambda k: job.layers / k * job.b + k * job.c)
    fitting = []
    for k in (0, least):
        for offload in (False, True):
            fitting += [
                plan
                for micro in range(1, job.batch + 1)
                if needs(job, plan := Plan(micro, k, offload)) <= (1 - margin) * job.capacity
            ]
    if not fitting:
        raise ValueError(f"capacity {job.capacity}: no plan fits")
    return min(fitting, key=lambda plan: (duration(job, plan), -plan.micro))
