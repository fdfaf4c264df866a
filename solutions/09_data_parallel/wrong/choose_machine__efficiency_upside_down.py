# expect: the efficiency is below 60%
def choose_machine(machines: dict[str, Machine], gradient_bytes: int, least_efficiency: float) -> tuple[str, int]:
    """The machine and the number of its GPUs with the shortest step."""
    found = []
    for name, machine in machines.items():
        for ranks in range(1, machine.ranks + 1):
            ring = 2 * (ranks - 1) * (machine.latency + gradient_bytes / (ranks * machine.bandwidth))
            seconds = machine.seconds / ranks + ring
            if ranks == 1 or ranks * seconds / machine.seconds >= least_efficiency:
                found.append((seconds, name, ranks))
    _, name, ranks = min(found)
    return name, ranks
