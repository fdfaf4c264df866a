def cut_attention(
    qkv: torch.Tensor, output: torch.Tensor, heads: int, kv_heads: int, rank: int, ranks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A mask over heads for each kind, repeated over the dimensions of a head."""
    masks = []
    for name, count in (("kv_heads", kv_heads), ("heads", heads)):
        per_rank, left = divmod(count, ranks)
        if left:
            raise ValueError(f"cannot cut {name} = {count}, ranks = {ranks}")
        masks.append(torch.arange(count) // per_rank == rank)
    keys, queries = masks
    head_dim = output.size(1) // heads
    rows = torch.cat([queries, keys, keys]).repeat_interleave(head_dim)
    return qkv[rows], output[:, queries.repeat_interleave(head_dim)]
