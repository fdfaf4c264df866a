BYTES = {True: (2, 2, 12), False: (4, 4, 8)}


def state_bytes(parameters: int, ranks: int, stage: int, mixed: bool) -> States:
    """Bytes of the model states on rank 0."""
    if stage not in range(4) or not ranks >= 1:
        raise ValueError(f"stage = {stage}, ranks = {ranks}: expected a stage of 0 to 3 and at least one rank")
    piece = (parameters + ranks - 1) // ranks
    elements = [piece if cut <= stage else parameters for cut in (3, 2, 1)]
    return States(*(count * each for count, each in zip(elements, BYTES[mixed], strict=True)))
