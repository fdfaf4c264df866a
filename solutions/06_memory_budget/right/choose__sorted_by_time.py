from itertools import product


def choose_plan(job: Job, margin: float) -> Plan:
    """The first plan that fits, in order of time."""
    segments = [k for k in range(job.layers + 1) if k == 0 or job.layers % k == 0]
    plans = [Plan(*each) for each in product(range(job.batch, 0, -1), segments, (False, True))]
    for plan in sorted(plans, key=lambda plan: duration(job, plan)):
        if needs(job, plan) <= job.capacity - margin * job.capacity:
            return plan
    raise ValueError(f"the capacity of {job.capacity} bytes is too small")
