def choose_degree(job: Job, machine: Machine) -> int:
    """The candidates, and a function that says how long each takes."""

    def seconds(n):
        link = machine.network if machine.per_node % n else machine.nvlink
        d = machine.gpus // n
        return (
            16 * job.layers * (n - 1) * job.tokens * job.width / machine.gpus / link
            + 4 * (d - 1) / d * job.parameters / n / machine.network
        )

    common = math.gcd(machine.gpus, job.heads)
    return min(
        (n for n in range(1, common + 1) if common % n == 0 and n * machine.memory >= 16 * job.parameters), key=seconds
    )
