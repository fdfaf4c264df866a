def choose_plan(job: Job, memory: float) -> Plan:
    """The plan with the shortest step that fits."""
    from itertools import product

    def fits_counts(plan):
        copies, rest = divmod(job.gpus, plan.stages)
        return not rest and job.layers % plan.stages == 0 and job.samples % (copies * plan.microbatches) == 0

    def size_of(plan):
        return job.samples * plan.stages // job.gpus // plan.microbatches

    def needs(plan):
        layers = job.layers // plan.stages
        full = size_of(plan) * layers * job.activations
        each = size_of(plan) * job.boundary if plan.recompute else full
        return layers * job.states + min(plan.stages, plan.microbatches) * each + plan.recompute * full

    def takes(plan):
        one = job.overhead + (3 + plan.recompute) * size_of(plan) * (job.layers // plan.stages) * job.forward
        return (plan.microbatches + plan.stages - 1) * one

    counts = product(range(1, job.gpus + 1), range(1, job.samples + 1), (False, True))
    plans = [plan for plan in (Plan(*each) for each in counts) if fits_counts(plan) and needs(plan) <= memory]
    if not plans:
        raise ValueError(f"memory = {memory} is too little for any plan")
    return min(plans, key=takes)
