# expect: 4 does not divide 6 layers
# fails: choice
def choose_plan(job: Job, memory: float) -> Plan:
    """The plan with the shortest step that fits."""
    found = []
    for stages in range(1, job.gpus + 1):
        if job.gpus % stages or job.samples % (job.gpus // stages):
            continue
        own, layers = job.samples // (job.gpus // stages), job.layers / stages
        for microbatches in range(1, own + 1):
            if own % microbatches:
                continue
            size, in_flight = own // microbatches, min(stages, microbatches)
            for recompute in (False, True):
                seconds = job.overhead + (4 if recompute else 3) * size * layers * job.forward
                kept = in_flight * size * layers * job.activations
                if recompute:
                    kept = in_flight * size * job.boundary + size * layers * job.activations
                if layers * job.states + kept <= memory:
                    found.append(((microbatches + stages - 1) * seconds, stages, microbatches, recompute))
    if not found:
        raise ValueError(f"memory = {memory} bytes: no plan fits")
    return Plan(*min(found)[1:])
