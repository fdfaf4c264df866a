def attention_work(batch, heads, kv_heads, queries, keys, head_dim, bytes_per_element):
    names = ["batch", "heads", "kv_heads", "queries", "keys", "head_dim", "bytes_per_element"]
    values = [batch, heads, kv_heads, queries, keys, head_dim, bytes_per_element]
    wrong = [f"{name} = {value}" for name, value in zip(names, values, strict=True) if value <= 0]
    if wrong:
        raise ValueError(", ".join(wrong))
    if heads / kv_heads != heads // kv_heads:
        raise ValueError("heads must be a multiple of kv_heads")
    moved = flops = 0
    for _ in range(batch):
        for head in range(heads):
            moved += 2 * queries * head_dim + 4 * queries * keys
            flops += queries * keys * (2 * head_dim + 1 + 5 + 2 * head_dim)
            if head % (heads // kv_heads) == 0:
                moved += 2 * keys * head_dim
    return Work(moved * bytes_per_element, flops)
