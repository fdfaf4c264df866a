def state_bytes(parameters: int, ranks: int, stage: int, mixed: bool) -> States:
    """Bytes of the model states on rank 0."""
    for name, value, low, high in (("stage", stage, 0, 3), ("ranks", ranks, 1, math.inf)):
        if not low <= value <= high:
            raise ValueError(f"{name} = {value}: expected {low} to {high}")
    largest = parameters // ranks + bool(parameters % ranks)
    held = dict.fromkeys(("optimizer", "gradients", "parameters"), parameters)
    for name in list(held)[:stage]:
        held[name] = largest
    for name in held:
        held[name] *= (12 if mixed else 8) if name == "optimizer" else (2 if mixed else 4)
    return States(**held)
