def attention_work(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, bytes_per_element: float
) -> Work:
    sizes = {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "queries": queries,
        "keys": keys,
        "head_dim": head_dim,
        "bytes_per_element": bytes_per_element,
    }
    for name in sizes:
        if sizes[name] <= 0:
            raise ValueError(f"{name} = {sizes[name]}: must be positive")
    groups, rest = divmod(heads, kv_heads)
    if rest:
        raise ValueError(f"kv_heads = {kv_heads} does not divide {heads}")
    per_group = 2 * head_dim * (groups * queries + keys) + 4 * groups * queries * keys
    return Work(
        float(np.prod([batch, kv_heads, per_group], dtype=np.int64) * bytes_per_element),
        batch * heads * queries * keys * 2 * (2 * head_dim + 3),
    )
