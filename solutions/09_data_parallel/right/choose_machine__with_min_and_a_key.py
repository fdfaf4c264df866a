def choose_machine(machines: dict[str, Machine], gradient_bytes: int, least_efficiency: float) -> tuple[str, int]:
    """The machine and the number of its GPUs with the shortest step."""

    def seconds(choice):
        machine, n = machines[choice[0]], choice[1]
        alpha, beta = machine.latency, machine.bandwidth
        return machine.seconds / n + 2 * (n - 1) * alpha + 2 * gradient_bytes * (n - 1) / (n * beta)

    choices = [(name, n) for name in machines for n in range(1, machines[name].ranks + 1)]
    good = [c for c in choices if c[1] == 1 or seconds((c[0], 1)) >= least_efficiency * c[1] * seconds(c)]
    return min(good, key=seconds)
