# expect: round the number of elements up first, and then multiply
# fails: values
def state_bytes(parameters: int, ranks: int, stage: int, mixed: bool) -> States:
    """Bytes of the model states on rank 0."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage = {stage}: expected 0, 1, 2 or 3")
    if ranks < 1:
        raise ValueError(f"ranks = {ranks}: expected 1 or more")
    piece = -(-parameters // ranks)
    per_parameter, per_gradient, for_optimizer = (2, 2, 12) if mixed else (4, 4, 8)
    return States(
        per_parameter * (piece if stage >= 3 else parameters),
        per_gradient * (piece if stage >= 2 else parameters),
        (-(-for_optimizer * parameters // ranks) if stage >= 1 else for_optimizer * parameters),
    )
