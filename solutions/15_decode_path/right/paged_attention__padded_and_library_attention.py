def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    size = keys.shape[1]
    flat_keys, flat_values = keys.flatten(0, 1), values.flatten(0, 1)
    k = keys.new_zeros(len(q), int(lengths.max()), *keys.shape[2:])
    v = torch.zeros_like(k)
    sees = torch.zeros(len(q), 1, 1, k.shape[1], dtype=torch.bool)
    for s, length in enumerate(lengths.tolist()):
        slots = [int(tables[s, p // size]) * size + p % size for p in range(length)]
        k[s, :length], v[s, :length] = flat_keys[slots], flat_values[slots]
        sees[s, ..., :length] = True
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    return functional.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=sees, enable_gqa=True)[:, :, 0]
