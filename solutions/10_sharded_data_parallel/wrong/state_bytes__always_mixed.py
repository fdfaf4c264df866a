# expect: expected   40
# fails: values
def state_bytes(parameters: int, ranks: int, stage: int, mixed: bool) -> States:
    """Bytes of the model states on rank 0."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage = {stage}: expected 0, 1, 2 or 3")
    if ranks < 1:
        raise ValueError(f"ranks = {ranks}: expected 1 or more")
    piece = -(-parameters // ranks)
    per_parameter, per_gradient, for_optimizer = (2, 2, 12)
    return States(
        per_parameter * (piece if stage >= 3 else parameters),
        per_gradient * (piece if stage >= 2 else parameters),
        for_optimizer * (piece if stage >= 1 else parameters),
    )
