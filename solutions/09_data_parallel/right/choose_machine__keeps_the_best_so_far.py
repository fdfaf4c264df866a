def choose_machine(machines: dict[str, Machine], gradient_bytes: int, least_efficiency: float) -> tuple[str, int]:
    """The machine and the number of its GPUs with the shortest step."""
    least, choice = float("inf"), None
    for name in machines:
        one = machines[name].seconds
        for extra in range(machines[name].ranks):
            n = extra + 1
            time = one / n
            for _ in range(2 * extra):
                time += machines[name].latency + gradient_bytes / n / machines[name].bandwidth
            if extra and one < least_efficiency * n * time:
                continue
            if time < least:
                least, choice = time, (name, n)
    return choice
