def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    size, kv_heads, head_dim = keys.shape[1:]
    results = []
    for query, table, length in zip(q, tables.tolist(), lengths.tolist(), strict=True):
        own = table[: (length + size - 1) // size]
        k, v = (torch.cat([each[block] for block in own])[:length] for each in (keys, values))
        grouped = query.view(kv_heads, -1, head_dim)
        scores = grouped @ k.permute(1, 2, 0) / head_dim**0.5
        results.append((scores.softmax(-1) @ v.transpose(0, 1)).reshape(-1, head_dim))
    return torch.stack(results)
