"""Cross-entropy over a vocabulary, loss and gradient in one launch, the gradient written over the logits if allowed.

Sources: Milakov and Gimelshein (2018) for the online sum; Hsu et al., "Liger Kernel" (2024) for the gradient in place.

For a row x with target t the loss is log Σ exp(x) − x[t], its gradient softmax(x) − one-hot(t), up to a factor that
comes from the rest of the network. So the forward pass makes the gradient at once: one reading for the maximum and the
sum, and a second one, from the L2 cache while rows are short enough, to write the gradient. Log-probabilities are never
in memory, and with `in_place` neither is a second matrix of tokens × vocabulary.

The backward pass multiplies that gradient by the factor. Usually the loss is the last operation, and the factor is 1.
The kernel reads the factor on the device, because the host would have to wait for it. If the factor is 1, the kernel
returns at once.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner.costs import Work
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Configuration
from threeloops.inner.kernels.rows.tiles import as_rows

__all__ = [
    "cost", "count_kept", "cross_entropy", "cross_entropy_kernel", "losses_and_gradient", "reference",
    "require_targets", "scale_rows", "scale_rows_kernel",
]  # fmt: skip

_SCALE_ROWS = Configuration({"BLOCK": 4096}, num_warps=8)


@triton.jit
def scale_rows_kernel(gradient_ptr, factor_ptr, columns, row_stride, factor_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(factor_ptr + row * factor_stride).to(tl.float32)
    if factor != 1.0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        pointer = gradient_ptr + row * row_stride + column
        scaled = tl.load(pointer, mask=column < columns, other=0.0).to(tl.float32) * factor
        tl.store(pointer, scaled.to(gradient_ptr.dtype.element_ty), mask=column < columns)


def scale_rows(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply gradient (rows, columns), rows contiguous, by `factor` in place. The factor is a scalar tensor, or one
    number per row."""
    rows, columns = gradient.shape
    if gradient.numel():
        grid = (rows, triton.cdiv(columns, _SCALE_ROWS.constants["BLOCK"]))
        factor_stride = factor.stride(0) if factor.ndim else 0
        scale_rows_kernel[grid](gradient, factor, columns, gradient.stride(0), factor_stride, **_SCALE_ROWS.options())
    return gradient


_LARGEST_BLOCK = 8192
_REDUCTIONS = ("mean", "sum", "none")


@triton.jit
def cross_entropy_kernel(
    logits_ptr, targets_ptr, losses_ptr, gradient_ptr, divisor_ptr, vocabulary, logits_row_stride, gradient_row_stride,
    ignore_index, label_smoothing, z_loss,
    GRADIENT: tl.constexpr, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_row_stride
    gradient_ptr += row * gradient_row_stride
    column = tl.arange(0, BLOCK)
    target = tl.load(targets_ptr + row)
    if target == ignore_index:
        tl.store(losses_ptr + row, 0.0)
        if GRADIENT:
            nothing = tl.zeros([BLOCK], gradient_ptr.dtype.element_ty)
            for start in range(0, vocabulary, BLOCK):
                tl.store(gradient_ptr + start + column, nothing, mask=start + column < vocabulary)
    else:
        valid = (target >= 0) & (target < vocabulary)
        # Read before the first reduction: its barrier keeps other threads from writing the gradient over it first.
        target_logit = tl.load(logits_ptr + target, mask=valid, other=0.0).to(tl.float32)
        maximum = -float("inf")
        total = 0.0
        logit_sum = 0.0
        for start in range(0, vocabulary, BLOCK):
            inside = start + column < vocabulary
            x = tl.load(logits_ptr + start + column, mask=inside, other=-float("inf")).to(tl.float32)
            raised = tl.maximum(maximum, tl.max(x, axis=0))
            shift = tl.where(raised == -float("inf"), 0.0, raised)  # while all are −inf, their exponentials are 0
            total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift), axis=0)
            maximum = raised
            if SMOOTHING:
                logit_sum += tl.sum(tl.where(inside, x, 0.0), axis=0)
        # Logits are measured from their maximum, so that large ones do not swallow the digits of log(total).
        loss = tl.log(total) + (1 - label_smoothing) * (maximum - target_logit)
        if SMOOTHING:
            loss += label_smoothing * (maximum - logit_sum / vocabulary)
        log_sum = maximum + tl.log(total)
        loss += z_loss * log_sum * log_sum
        tl.store(losses_ptr + row, tl.where(valid, loss, float("nan")))
        if GRADIENT:
            share = tl.where(valid, 1.0 / tl.load(divisor_ptr), float("nan"))
            scale = share * (1 + 2 * z_loss * log_sum) / total
            for start in range(0, vocabulary, BLOCK):
                index = start + column
                inside = index < vocabulary
                x = tl.load(logits_ptr + index, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
                wanted = label_smoothing / vocabulary + tl.where(index == target, 1 - label_smoothing, 0.0)
                gradient = scale * tl.exp(x - maximum) - share * wanted
                tl.store(gradient_ptr + index, gradient.to(gradient_ptr.dtype.element_ty), mask=inside)


def _configuration(vocabulary: int) -> Configuration:
    """Choose up to sixteen warps per row, so that few rows are in flight and the second reading still finds a row in
    L2."""
    block = min(_LARGEST_BLOCK, triton.next_power_of_2(vocabulary))
    return Configuration({"BLOCK": block}, num_warps=max(4, block // 512))


def cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    in_place: bool = False,
) -> torch.Tensor:
    """Compute the cross-entropy of (rows, vocabulary) logits in float32, like torch.nn.functional.cross_entropy.
    Differentiable.

    Args:
        logits: float16, bfloat16 or float32; rows may lie apart.
        targets: (rows,) int64. A target outside the vocabulary makes its loss and gradient NaN; nothing is read there.
        ignore_index: rows with this target have loss 0 and gradient 0 and do not count in the mean.
        label_smoothing: the part of the target's probability that is spread over the whole vocabulary.
        z_loss: adds z_loss · (log Σ exp)² to each row's loss, which keeps logits from drifting (PaLM, 2022).
        reduction: "mean" over the rows not ignored (NaN when all are), "sum", or "none" for one loss per row.
        in_place: write the gradient over the logits. An operator that kept them for its own backward pass then raises
            autograd's error about a modified tensor.

    Returns a float32 scalar, or (rows,) for "none". The gradient is made in the forward pass, so backward may run once
    only. A vocabulary that is a multiple of 16 is read 16 bytes at a time, others element by element.
    """
    launching.require_tensors(logits=logits)
    launching.require_dimensions("logits", logits, "rows, vocabulary")
    launching.require_columns("logits", logits)
    require_targets(targets, label_smoothing, logits=logits)
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction = {reduction!r}: expected one of {', '.join(_REDUCTIONS)}")
    differentiable = torch.is_grad_enabled() and logits.requires_grad
    if in_place and differentiable and logits.is_leaf:
        raise ValueError("in_place = True and logits is a leaf that wants a gradient: expected an operator's output")
    options = ignore_index, label_smoothing, z_loss
    return _CrossEntropy.apply(logits, targets, options, reduction, in_place, differentiable)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, options, reduction, in_place, differentiable):
        divisor = count_kept(targets, options[0]) if reduction == "mean" else None
        losses, gradient = losses_and_gradient(
            logits, targets, divisor, *options, in_place=in_place, gradient=differentiable
        )
        if in_place and differentiable:
            torch.autograd.graph.increment_version(logits)
        ctx.gradient = gradient
        return losses if reduction == "none" else losses.sum() if divisor is None else losses.sum() / divisor

    @staticmethod
    @once_differentiable
    def backward(ctx, factor):
        if ctx.gradient is None:
            raise RuntimeError("cross_entropy: a second backward pass; the first one took the gradient")
        gradient, ctx.gradient = ctx.gradient, None
        return scale_rows(gradient, factor), *(None,) * 5


def require_targets(targets: torch.Tensor, label_smoothing: float, **rows: torch.Tensor) -> None:
    """Require one int64 target for each row of the one tensor in `rows`, on its device."""
    launching.require_dtypes((torch.int64,), targets=targets)
    ((name, tensor),) = rows.items()
    launching.require_shape("targets", targets, tensor.shape[:1], f"one for each row of {name}")
    launching.require_one_device(**rows, targets=targets)
    launching.require_fraction("label_smoothing", label_smoothing)


def count_kept(targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Count the rows that are not ignored. The count is a float32 scalar on the device, because the kernel reads it
    there."""
    return (targets != ignore_index).sum().to(torch.float32)


def losses_and_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    divisor: torch.Tensor | None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    *,
    in_place: bool = False,
    gradient: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a float32 loss for each row, and the logits' gradient of their sum, divided by `divisor` if given."""
    matrix = as_rows(logits)
    if in_place and gradient and matrix.stride() != logits.stride():
        raise ValueError(f"logits has strides {logits.stride()}: expected contiguous rows, since it is overwritten")
    rows, vocabulary = matrix.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    made = matrix if in_place or not gradient else matrix.new_empty(matrix.shape)
    if divisor is None:
        divisor = losses.new_ones(())
    if rows:
        cross_entropy_kernel[(rows,)](
            matrix, targets.contiguous(), losses, made, divisor, vocabulary, matrix.stride(0), made.stride(0),
            ignore_index, label_smoothing, z_loss,
            GRADIENT=gradient, SMOOTHING=label_smoothing > 0, **_configuration(vocabulary).options(),
        )  # fmt: skip
    return losses, made if gradient else None


def reference(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:
    log_sum = logits.logsumexp(-1)
    valid = targets != ignore_index
    picked = logits.gather(-1, torch.where(valid, targets, 0)[:, None])[:, 0]
    losses = log_sum - (1 - label_smoothing) * picked - label_smoothing * logits.mean(-1) + z_loss * log_sum.square()
    losses = torch.where(valid, losses, 0)
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.sum() / valid.sum()


def cost(rows: int, vocabulary: int, bytes_per_element: float = 2, *, gradient: bool = True, ignored: int = 0) -> Work:
    """Return the cost: reads logits and an int64 target per row, writes a float32 loss per row and the gradient, in
    place or not.

    Logits of `ignored` rows are not read. 5 FLOPs per element for the loss, as for softmax, 3 more for the gradient.
    """
    read = (rows - ignored) * vocabulary
    written = rows * vocabulary if gradient else 0
    return Work((read + written) * bytes_per_element + 12 * rows, (5 + 3 * gradient) * read)
