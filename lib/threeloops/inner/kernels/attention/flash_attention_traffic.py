"""The least that FlashAttention's backward pass must move and compute."""

from threeloops.inner.costs import Work, visible_pairs
from threeloops.inner.kernels.attention.sizes import AttentionSizes

__all__ = ["backward_cost"]

_LSE_BYTES = 4


def backward_cost(sizes: AttentionSizes, bytes_per_element: float = 2, *, causal: bool = False) -> Work:
    """Return the least work of the three backward kernels, if each reads its inputs once.

    The first reads O, dO and the log-sum-exp and writes two numbers per row. Each of the others reads Q, K, V, dO and
    those two. dQ, dK and dV are written. FLOPs of a pair that attends are seven products of 2·head_dim, since both
    kernels compute S and dP, and 5 in each of them for scale, softmax and its derivative.
    """
    elements = (7 * sizes.rows + 6 * sizes.kv_rows) * sizes.head_dim
    per_row = (1 + 2 + 2 + 2) * _LSE_BYTES
    pairs = sizes.batch * sizes.heads * visible_pairs(sizes.queries, sizes.keys, causal)
    return Work(elements * bytes_per_element + per_row * sizes.rows, (14 * sizes.head_dim + 10) * pairs)
