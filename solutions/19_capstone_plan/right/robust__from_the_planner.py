def robust(model: Transformer, machines: list[Machine], gpus: int, batch: int, sequence: int) -> Plan:
    """The layout with the smallest worst regret."""
    found = plans(model, machines[0], gpus, batch, sequence, context=False, chunks=(1,), recompute=("none", "full"))
    if not found:
        raise ValueError(f"gpus = {gpus}: nothing fits")
    best, chosen = [], None
    for machine in machines:
        best.append(min(step_time(model, machine, each.plan).seconds for each in found))
    smallest = math.inf
    for each in found:
        worst = 0.0
        for machine, least in zip(machines, best, strict=True):
            worst = max(worst, step_time(model, machine, each.plan).seconds / least)
        if worst < smallest:
            smallest, chosen = worst, each.plan
    return chosen
