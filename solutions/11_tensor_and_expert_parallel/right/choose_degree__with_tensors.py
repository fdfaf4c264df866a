def choose_degree(job: Job, machine: Machine) -> int:
    """All degrees at once, in float64; what is not possible takes for ever."""
    n = torch.arange(1, machine.gpus + 1, dtype=torch.float64)
    d = machine.gpus / n
    link = torch.where(machine.per_node % n == 0, machine.nvlink, machine.network).double()
    size = job.tokens * job.width * 2 * n / machine.gpus
    seconds = 8 * job.layers * (n - 1) / n * size / link + 2 * (1 - 1 / d) * 2 * job.parameters / n / machine.network
    possible = (machine.gpus % n == 0) & (job.heads % n == 0) & (16 * job.parameters <= n * machine.memory)
    return int(n[torch.where(possible, seconds, torch.inf).argmin()])
