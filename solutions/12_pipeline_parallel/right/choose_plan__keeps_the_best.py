def choose_plan(job: Job, memory: float) -> Plan:
    """The plan with the shortest step that fits."""
    best = None
    for stages in [p for p in range(1, job.gpus + 1) if job.gpus % p == 0 == job.layers % p]:
        copies, depth = job.gpus // stages, job.layers // stages
        if job.samples % copies:
            continue
        for size in range(1, job.samples // copies + 1):
            microbatches, left = divmod(job.samples // copies, size)
            if left:
                continue
            one, held = size * depth * job.activations, min(stages, microbatches)
            for recompute, units, kept in ((False, 3, held * one), (True, 4, held * size * job.boundary + one)):
                if depth * job.states + kept > memory:
                    continue
                seconds = (microbatches + stages - 1) * (job.overhead + units * size * depth * job.forward)
                if best is None or seconds < best[0]:
                    best = seconds, Plan(stages, microbatches, recompute)
    if best is None:
        raise ValueError(f"nothing fits into memory = {memory}")
    return best[1]
