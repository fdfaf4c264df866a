def robust(model: Transformer, machines: list[Machine], gpus: int, batch: int, sequence: int) -> Plan:
    """The layout with the smallest worst regret."""
    found = layouts(model, machines[0], gpus, batch, sequence)
    if not found:
        raise ValueError(f"no layout for gpus = {gpus}")
    speeds = {plan: [step_time(model, machine, plan).tokens_per_gpu for machine in machines] for plan in found}
    top = [max(row[n] for row in speeds.values()) for n in range(len(machines))]
    return max(speeds, key=lambda plan: min(speed / most for speed, most in zip(speeds[plan], top, strict=True)))
