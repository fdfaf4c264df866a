# expect: GB of 45 per GPU
def choose_degree(job: Job, machine: Machine) -> int:
    """The degree of tensor parallelism with the least communication."""
    found = []
    for n in range(1, machine.gpus + 1):
        if machine.gpus % n or job.heads % n:
            continue
        replicas = machine.gpus // n
        activations = job.tokens * n / machine.gpus * job.width * 2
        link = machine.network if machine.per_node % n else machine.nvlink
        tensor = job.layers * 4 * 2 * (n - 1) / n * activations / link
        data = 2 * (replicas - 1) / replicas * job.parameters / n * 2 / machine.network
        found.append((tensor + data, n))
    return min(found)[1]
