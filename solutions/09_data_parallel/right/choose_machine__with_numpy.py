def choose_machine(machines: dict[str, Machine], gradient_bytes: int, least_efficiency: float) -> tuple[str, int]:
    """The machine and the number of its GPUs with the shortest step."""
    import numpy as np

    best = (np.inf, "", 0)
    for name, machine in machines.items():
        n = np.arange(1, machine.ranks + 1)
        time = machine.seconds / n + 2 * (n - 1) * (machine.latency + gradient_bytes / (n * machine.bandwidth))
        time[(machine.seconds / (n * time) < least_efficiency) & (n > 1)] = np.inf
        if time.min() < best[0]:
            best = (time.min(), name, int(time.argmin()) + 1)
    return best[1], best[2]
