def divisors(number):
    return [each for each in range(1, number + 1) if number % each == 0]


def candidates(job):
    """Seconds, bytes and the plan."""
    for stages in divisors(math.gcd(job.gpus, job.layers)):
        copies, layers = job.gpus // stages, job.layers // stages
        if job.samples % copies == 0:
            for microbatches in divisors(job.samples // copies):
                rows = job.samples // copies // microbatches
                flying, activations = min(stages, microbatches), rows * layers * job.activations
                slots, unit = microbatches + stages - 1, rows * layers * job.forward
                yield slots * (job.overhead + 3 * unit), flying * activations, layers, (stages, microbatches, False)
                small = flying * rows * job.boundary + activations
                yield slots * (job.overhead + 4 * unit), small, layers, (stages, microbatches, True)


def choose_plan(job, memory):
    fitting = [(s, plan) for s, kept, layers, plan in candidates(job) if kept + layers * job.states <= memory]
    if not fitting:
        raise ValueError(f"memory = {memory}: no plan needs so little")
    return Plan(*min(fitting)[1])
