# expect: this has the shortest step in its worst world
# fails: regret
def robust(model: Transformer, machines: list[Machine], gpus: int, batch: int, sequence: int) -> Plan:
    """The layout with the smallest worst regret."""
    found = layouts(model, machines[0], gpus, batch, sequence)
    if not found:
        raise ValueError(f"gpus = {gpus}: no layout fits; use more of them")
    seconds = [[step_time(model, machine, plan).seconds for machine in machines] for plan in found]
    best = [min(column) for column in zip(*seconds, strict=True)]
    regrets = [max(row) for row in seconds]
    return found[regrets.index(min(regrets))]
