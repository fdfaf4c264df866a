"""The least bytes and arithmetic of matrix products, norms, attention and elementwise operations."""

from threeloops.inner.costs.work import Work, require_positive

__all__ = ["attention", "elementwise", "layernorm", "matmul", "saxpy", "softmax", "visible_pairs"]


def matmul(m: int, k: int, n: int, bytes_per_element: float = 2) -> Work:
    """Return the work of (m, k) @ (k, n) → (m, n).

    It reads both factors and writes the product: mk + kn + mn elements. It takes 2·m·k·n FLOPs.
    """
    require_positive(m=m, k=k, n=n, bytes_per_element=bytes_per_element)
    return Work((m * k + k * n + m * n) * bytes_per_element, 2 * m * k * n, "product")


def layernorm(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the work of LayerNorm of each row.

    It reads input, scale and shift, and writes the output: 2·rows·columns + 2·columns elements. It takes 7 FLOPs per
    element: sum, subtracted mean, square, sum of squares, division by the deviation, scale and shift. The few FLOPs per
    row are left out.
    """
    require_positive(rows=rows, columns=columns, bytes_per_element=bytes_per_element)
    return Work((2 * rows * columns + 2 * columns) * bytes_per_element, 7 * rows * columns)


def softmax(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the work of softmax of each row.

    It reads the input once and writes the output once: 2·rows·columns elements. It takes 5 FLOPs per element: maximum,
    subtraction, exponential, sum, division.
    """
    require_positive(rows=rows, columns=columns, bytes_per_element=bytes_per_element)
    return Work(2 * rows * columns * bytes_per_element, 5 * rows * columns)


def visible_pairs(queries: int, keys: int, causal: bool) -> int:
    """Count the pairs of query and key that attend, in one head.

    If causal, query i sees keys 0 … i + keys − queries.
    """
    if not causal:
        return queries * keys
    full = min(queries, keys)
    return full * (full + 1) // 2 + full * (keys - full)


def attention(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    bytes_per_element: float = 2,
    *,
    kv_heads: int | None = None,
    causal: bool = False,
    fused: bool = False,
) -> Work:
    """Return the work of softmax(Q Kᵀ / √d) V. Q and the output are (batch, heads, queries, head_dim). K and V are
    (batch, kv_heads, keys, head_dim), with kv_heads = heads unless given.

    Naive: three kernels. Q, K, V are read, the output is written, and the scores move four times: written by Q Kᵀ, read
    and written by the softmax, read by P V. A mask hides scores but saves nothing.
    Fused: reads Q, K, V once and writes the output; no score leaves the chip. `causal` then skips hidden pairs: query i
    sees the first keys − queries + i + 1 keys.
    FLOPs: 4·head_dim per pair for the products, 6 for scale and softmax; an online softmax's rescaling is left out.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    sizes = {"batch": batch, "heads": heads, "queries": queries, "keys": keys, "head_dim": head_dim}
    require_positive(**sizes, kv_heads=kv_heads, bytes_per_element=bytes_per_element)
    if heads % kv_heads:
        raise ValueError(f"kv_heads = {kv_heads}: expected a divisor of heads = {heads}")
    if causal and queries > keys:
        raise ValueError(f"queries = {queries}, keys = {keys}: a causal query needs its own key; give at least as many")
    outer_elements = 2 * batch * (heads * queries + kv_heads * keys) * head_dim
    traffic = outer_elements if fused else outer_elements + 4 * batch * heads * queries * keys
    pairs = batch * heads * visible_pairs(queries, keys, causal and fused)
    kind = ("decoding" if queries == 1 < keys else "attention") if fused else ""
    return Work(traffic * bytes_per_element, (4 * head_dim + 6) * pairs, kind)


def elementwise(
    elements: int, bytes_per_element: float = 2, *, inputs: int = 1, outputs: int = 1, flops_per_element: float = 1
) -> Work:
    """Return the work of reading `inputs` tensors once and writing `outputs` of the same size once, with
    `flops_per_element` per position."""
    require_positive(elements=elements, bytes_per_element=bytes_per_element)
    return Work(elements * (inputs + outputs) * bytes_per_element, elements * flops_per_element)


def saxpy(elements: int, bytes_per_element: float = 4) -> Work:
    """Return the work of y ← a·x + y. It reads x and y and writes y: 3 elements per position. A multiply-add is 2
    FLOPs. The scalar a is free."""
    return elementwise(elements, bytes_per_element, inputs=2, outputs=1, flops_per_element=2)
