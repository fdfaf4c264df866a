def cut_attention(
    qkv: torch.Tensor, output: torch.Tensor, heads: int, kv_heads: int, rank: int, ranks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of rows and columns; indexing with a list copies."""
    if heads % ranks:
        raise ValueError(f"heads = {heads}, ranks = {ranks}")
    if kv_heads % ranks:
        raise ValueError(f"kv_heads = {kv_heads}, ranks = {ranks}")
    size, own, own_kv = output.shape[1] // heads, heads // ranks, kv_heads // ranks
    of_heads = [
        *range(rank * own, (rank + 1) * own),
        *range(heads + rank * own_kv, heads + (rank + 1) * own_kv),
        *range(heads + kv_heads + rank * own_kv, heads + kv_heads + (rank + 1) * own_kv),
    ]
    rows = [head * size + i for head in of_heads for i in range(size)]
    return qkv[rows], output[:, rows[: own * size]]
