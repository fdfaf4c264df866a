"""The least that sliding-window attention must move and compute."""

from dataclasses import asdict

from threeloops.inner.costs import Work, require_positive
from threeloops.inner.kernels.attention.sizes import AttentionSizes, least_forward, pairs_in_window

__all__ = ["backward_cost", "cost"]


def _visible_pairs(length: int, window: int, sinks: int = 0) -> int:
    """Count the pairs of query and key that attend: those in the window, and sinks that have left the window of later
    queries."""
    outside = max(length - window, 0)
    sinks = min(sinks, outside)
    return pairs_in_window(length, window) + outside * sinks - sinks * (sinks - 1) // 2


def cost(sizes: AttentionSizes, window: int, bytes_per_element: float = 2, *, sinks: int = 0) -> Work:
    """Return the least work of the forward pass: `least_forward` of visible pairs only."""
    require_positive(**asdict(sizes), window=window)
    return least_forward(sizes, _visible_pairs(sizes.queries, window, sinks), bytes_per_element)


def backward_cost(sizes: AttentionSizes, window: int, bytes_per_element: float = 2, *, sinks: int = 0) -> Work:
    """Return the least work of the two backward kernels. The first reads q, k, v, the output, its gradient and the
    log-sum-exp and writes dq and delta. The second reads q, k, v, the gradient, the log-sum-exp and delta and writes dk
    and dv. FLOPs of a visible pair are (6 + 8)·head_dim, and five per kernel for the exponential and the operations
    around it."""
    require_positive(**asdict(sizes), window=window)
    elements = 6 * (sizes.rows + sizes.kv_rows) * sizes.head_dim
    pairs = sizes.batch * sizes.heads * _visible_pairs(sizes.queries, window, sinks)
    return Work(elements * bytes_per_element + 4 * 4 * sizes.rows, (14 * sizes.head_dim + 10) * pairs)
