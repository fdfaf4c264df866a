def robust(model: Transformer, machines: list[Machine], gpus: int, batch: int, sequence: int) -> Plan:
    """The layout with the smallest worst regret."""
    found = layouts(model, machines[0], gpus, batch, sequence)
    if len(found) == 0:
        raise ValueError(f"gpus = {gpus} are too few")
    table = np.array([[step_time(model, machine, plan).seconds for plan in found] for machine in machines])
    regret = (table / table.min(axis=1, keepdims=True)).max(axis=0)
    return found[int(regret.argmin())]
