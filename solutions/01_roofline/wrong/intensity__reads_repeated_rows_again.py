# expect: looked up twice is read once
# caught: hidden
def matmul_work(m: int, k: int, n: int, bytes_per_element: float) -> Work:
    """(m, k) @ (k, n) → (m, n)."""
    require_positive(m=m, k=k, n=n, bytes_per_element=bytes_per_element)
    return Work((m * k + k * n + m * n) * bytes_per_element, 2 * m * k * n)


def layernorm_work(rows: int, columns: int, bytes_per_element: float) -> Work:
    """LayerNorm of each row, with a scale and a shift for each column."""
    require_positive(rows=rows, columns=columns, bytes_per_element=bytes_per_element)
    return Work((2 * rows * columns + 2 * columns) * bytes_per_element, 7 * rows * columns)


def softmax_work(rows: int, columns: int, bytes_per_element: float) -> Work:
    """Softmax of each row."""
    require_positive(rows=rows, columns=columns, bytes_per_element=bytes_per_element)
    return Work(2 * rows * columns * bytes_per_element, 5 * rows * columns)


def attention_work(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, bytes_per_element: float
) -> Work:
    """softmax(Q Kᵀ / √head_dim) V in three kernels, scores and probabilities written to memory."""
    require_positive(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        bytes_per_element=bytes_per_element,
    )
    if heads % kv_heads:
        raise ValueError(f"kv_heads = {kv_heads}: expected a divisor of heads = {heads}")
    query_elements = batch * heads * queries * head_dim
    key_elements = batch * kv_heads * keys * head_dim
    scores = batch * heads * queries * keys
    elements = 2 * query_elements + 2 * key_elements + 4 * scores
    return Work(elements * bytes_per_element, scores * (4 * head_dim + 6))


def embedding_work(tokens: int, distinct: int, width: int, bytes_per_element: float) -> Work:
    """Look up `tokens` rows of a table, of which `distinct` are different."""
    require_positive(tokens=tokens, distinct=distinct, width=width, bytes_per_element=bytes_per_element)
    if distinct > tokens:
        raise ValueError(f"distinct = {distinct}: expected at most tokens = {tokens}")
    return Work(8 * tokens + 2 * tokens * width * bytes_per_element, 0)


def require_positive(**sizes: float) -> None:
    for name, size in sizes.items():
        if not size > 0:
            raise ValueError(f"{name} = {size}: expected a positive number")
