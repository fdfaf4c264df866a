# expect: divide by the best, do not subtract it
# fails: regret
def robust(model: Transformer, machines: list[Machine], gpus: int, batch: int, sequence: int) -> Plan:
    """The layout with the smallest worst regret."""
    found = layouts(model, machines[0], gpus, batch, sequence)
    if not found:
        raise ValueError(f"gpus = {gpus}: no layout fits")
    table = np.array([[step_time(model, m, p).seconds for m in machines] for p in found])
    worst = (table - table.min(axis=0)).max(axis=1)
    return found[int(worst.argmin())]
