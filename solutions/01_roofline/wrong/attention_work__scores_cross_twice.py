# expect: the scores cross four times
# fails: values
def attention_work(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, bytes_per_element: float
) -> Work:
    """softmax(Q Kᵀ / √head_dim) V in three kernels, scores and probabilities written to memory."""
    for name, value in {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "queries": queries,
        "keys": keys,
        "head_dim": head_dim,
        "bytes_per_element": bytes_per_element,
    }.items():
        if not value > 0:
            raise ValueError(f"{name} = {value}: expected a positive number")
    if heads % kv_heads:
        raise ValueError(f"kv_heads = {kv_heads}: expected a divisor of heads = {heads}")
    scores = batch * heads * queries * keys
    elements = 2 * batch * heads * queries * head_dim + 2 * batch * kv_heads * keys * head_dim + 2 * scores
    return Work(elements * bytes_per_element, scores * (4 * head_dim + 6))
