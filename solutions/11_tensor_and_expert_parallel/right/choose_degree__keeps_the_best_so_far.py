def all_reduce_seconds(ranks, size, bandwidth):
    return 2 * (ranks - 1) / ranks * size / bandwidth


def choose_degree(job: Job, machine: Machine) -> int:
    """From the largest degree down, as long as memory suffices."""
    best, shortest = 0, math.inf
    for replicas in range(1, machine.gpus + 1):
        if machine.gpus % replicas:
            continue
        n = machine.gpus // replicas
        if 16 * job.parameters / n > machine.memory:
            break
        if job.heads % n == 0:
            link = machine.network if machine.per_node % n else machine.nvlink
            took = 4 * job.layers * all_reduce_seconds(n, job.tokens / replicas * job.width * 2, link)
            took += all_reduce_seconds(replicas, job.parameters / n * 2, machine.network)
            if took < shortest:
                best, shortest = n, took
    return best
