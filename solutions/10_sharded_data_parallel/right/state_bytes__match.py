def state_bytes(parameters: int, ranks: int, stage: int, mixed: bool) -> States:
    """Bytes of the model states on rank 0."""
    if ranks < 1:
        raise ValueError(f"ranks = {ranks}")
    p = parameters
    s, rest = divmod(p, ranks)
    s += rest > 0
    match stage:
        case 0:
            sizes = p, p, p
        case 1:
            sizes = p, p, s
        case 2:
            sizes = p, s, s
        case 3:
            sizes = s, s, s
        case _:
            raise ValueError(f"stage = {stage}")
    narrow = 2 if mixed else 4
    return States(
        parameters=narrow * sizes[0],
        gradients=narrow * sizes[1],
        optimizer=(16 - 2 * narrow if mixed else 8) * sizes[2],
    )
