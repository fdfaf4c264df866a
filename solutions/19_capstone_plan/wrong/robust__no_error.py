# expect: expected   ValueError with 'gpus' and '8' in its message
# fails: fits
def robust(model: Transformer, machines: list[Machine], gpus: int, batch: int, sequence: int) -> Plan:
    """The layout with the smallest worst regret."""
    found = layouts(model, machines[0], gpus, batch, sequence)
    if not found:
        return None
    seconds = [[step_time(model, machine, plan).seconds for machine in machines] for plan in found]
    best = [min(column) for column in zip(*seconds, strict=True)]
    regrets = [max(each / least for each, least in zip(row, best, strict=True)) for row in seconds]
    return found[regrets.index(min(regrets))]
