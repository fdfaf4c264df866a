def cut_attention(
    qkv: torch.Tensor, output: torch.Tensor, heads: int, kv_heads: int, rank: int, ranks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One dimension per head, and slices of it."""
    wrong = [
        f"{name} = {n}, ranks = {ranks}" for name, n in {"heads": heads, "kv_heads": kv_heads}.items() if n % ranks
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    by_head = qkv.view(heads + 2 * kv_heads, -1, qkv.shape[1])

    def mine(first, count):
        return by_head[first + rank * count // ranks : first + (rank + 1) * count // ranks]

    own = torch.cat([mine(0, heads), mine(heads, kv_heads), mine(heads + kv_heads, kv_heads)]).flatten(0, 1)
    columns = output.view(len(output), heads, -1)[:, rank * heads // ranks : (rank + 1) * heads // ranks]
    return own.clone(), columns.flatten(1).clone()
