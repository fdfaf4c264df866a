def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Block after block, with a running maximum and sum, as a kernel does it."""
    _, size, kv_heads, head_dim = keys.shape
    out = torch.empty_like(q)
    for s in range(len(q)):
        query = q[s].unflatten(0, (kv_heads, -1)) * head_dim**-0.5
        top = torch.full(query.shape[:2], -torch.inf)
        total, mixed = torch.zeros(query.shape[:2]), torch.zeros_like(query)
        for start in range(0, int(lengths[s]), size):
            count, block = min(size, int(lengths[s]) - start), int(tables[s, start // size])
            scores = torch.einsum("kgd,nkd->kgn", query, keys[block, :count])
            new = torch.maximum(top, scores.amax(-1))
            weights, factor = (scores - new[..., None]).exp(), (top - new).exp()
            total = total * factor + weights.sum(-1)
            mixed = mixed * factor[..., None] + torch.einsum("kgn,nkd->kgd", weights, values[block, :count])
            top = new
        out[s] = (mixed / total[..., None]).flatten(0, 1)
    return out
