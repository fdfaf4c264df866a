"""The last linear layer and cross-entropy together, a chunk of rows at a time, so that only one chunk of logits exists.

Source: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training" (2024).

The logits of 8,192 tokens over a vocabulary of 128,256 take 2.1 GB in bfloat16, and so does their gradient; the hidden
states they come from, 4,096 wide, take 67 MB. Since cross-entropy makes its gradient in the forward pass, a chunk of
logits is turned into its gradient in place and multiplied at once into the gradients of hidden states and weight; then
its memory is free. The three products are calls of torch.matmul (cuBLAS). Only their order is special: they are not
fused into one kernel.
"""

from typing import Any

import torch
import triton
from torch.autograd.function import once_differentiable

from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.rows import cross_entropy

__all__ = ["cost", "fused_linear_cross_entropy", "reference"]


def fused_linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    chunk_rows: int | None = None,
) -> torch.Tensor:
    """Compute the cross-entropy of the logits hidden @ weightᵀ, which are never all in memory. Differentiable in hidden
    and weight.

    Args:
        hidden: (rows, width) of float16, bfloat16 or float32.
        weight: (vocabulary, width) of the same dtype: an embedding matrix, or the weight of a linear layer.
        targets, ignore_index, label_smoothing, z_loss: as in `cross_entropy`.
        reduction: "mean" or "sum"; one loss per row would need the weight's gradient row by row.
        chunk_rows: rows whose logits exist together; by default as many as take no more memory than hidden.

    Returns a float32 scalar. Gradients are made in the forward pass, the weight's in one float32 sum over all chunks,
    so backward may run once only.
    """
    launching.require_tensors(hidden=hidden, weight=weight)
    launching.require_dimensions("hidden", hidden, "rows, width")
    launching.require_shape("weight", weight, (weight.shape[0], hidden.shape[1]), "(vocabulary, width of hidden)")
    launching.require_columns("hidden", hidden)
    launching.require_columns("weight", weight.T)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction = {reduction!r}: expected 'mean' or 'sum'; use cross_entropy for one loss per row")
    cross_entropy.require_targets(targets, label_smoothing, hidden=hidden)
    if chunk_rows is None:
        chunk_rows = _chunk_size(hidden.shape[0], hidden.shape[1], weight.shape[0])
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows = {chunk_rows}: expected a positive number of rows, or None to choose it")
    differentiable = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    options = ignore_index, label_smoothing, z_loss
    return _FusedLinearCrossEntropy.apply(hidden, weight, targets, options, reduction, chunk_rows, differentiable)


def _chunk_size(rows: int, width: int, vocabulary: int) -> int:
    """Return the rows per chunk, a power of two: about vocabulary / width chunks, each as large as hidden."""
    return triton.next_power_of_2(triton.cdiv(max(rows, 1), triton.cdiv(vocabulary, width)))


class _FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, options, reduction, chunk_rows, differentiable):
        divisor = cross_entropy.count_kept(targets, options[0]) if reduction == "mean" else None
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        wanted = [differentiable and needed for needed in ctx.needs_input_grad[:2]]
        hidden_gradient = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device) if wanted[0] else None
        weight_gradient = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if wanted[1] else None
        for start in range(0, hidden.shape[0], chunk_rows):
            rows = slice(start, start + chunk_rows)
            logits = hidden[rows] @ weight.T
            losses, gradient = cross_entropy.losses_and_gradient(
                logits, targets[rows], divisor, *options, in_place=True, gradient=differentiable
            )
            loss += losses.sum()
            if hidden_gradient is not None:
                torch.matmul(gradient, weight, out=hidden_gradient[rows])
            if weight_gradient is not None and gradient is not None:
                weight_gradient += gradient.T @ hidden[rows]
        ctx.gradients = hidden_gradient, None if weight_gradient is None else weight_gradient.to(weight.dtype)
        return loss if divisor is None else loss / divisor

    @staticmethod
    @once_differentiable
    def backward(ctx, factor):
        if ctx.gradients is None:
            raise RuntimeError("fused_linear_cross_entropy: a second backward pass; the first one took the gradients")
        gradients, ctx.gradients = ctx.gradients, None
        scaled = (None if gradient is None else cross_entropy.scale_rows(gradient, factor) for gradient in gradients)
        return *scaled, *(None,) * 5


def reference(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, **options: Any) -> torch.Tensor:
    return cross_entropy.reference(hidden @ weight.T, targets, **options)


def cost(rows: int, width: int, vocabulary: int, bytes_per_element: float = 2) -> Work:
    """Return the cost of the loss and both gradients. Reads hidden, weight and targets, writes two gradients and the
    loss; three products and the cross-entropy's arithmetic. The chunks of logits that this implementation moves could
    stay on the chip, so they do not count."""
    outside = 2 * (rows + vocabulary) * width * bytes_per_element + 8 * rows + 4
    products = 3 * costs.matmul(rows, width, vocabulary).flops
    return Work(outside, products + cross_entropy.cost(rows, vocabulary).flops)
