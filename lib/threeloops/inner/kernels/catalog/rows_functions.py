"""Inputs of the catalog's kernels, and torch's own operators on the same inputs."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from threeloops.inner.kernels.catalog.entry import Inputs, Shape
from threeloops.inner.kernels.matmul import qkv_projection
from threeloops.inner.kernels.rows import bias_gelu_dropout as fused
from threeloops.inner.kernels.rows import cross_entropy

__all__ = [
    "TARGETS_PER_IGNORED", "by_keyword", "drawn", "launch_loss_and_gradient", "linear_gradients",
    "loss_and_gradient", "normal", "qkv_inputs", "qkv_reference", "torch_dropout", "torch_layernorm",
    "torch_layernorm_backward", "torch_qkv", "torch_rmsnorm", "with_dropout", "with_scaled_weight",
    "with_statistics", "with_targets",
]  # fmt: skip

_SEED = 20_240_229
"""The seed of the dropout masks, an arbitrary number."""
TARGETS_PER_IGNORED = 8


def normal(dtype: torch.dtype, device: str, seed: int, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Return tensors of normal numbers, or unfilled ones on "meta"."""
    if device == "meta":
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(shape, dtype=dtype, device=device, generator=generator) for shape in shapes)


def drawn(*tensors: tuple[str, ...], then: Callable[..., tuple[Any, ...]] = lambda *drawn: drawn) -> Inputs:
    """Make inputs: call `then` with tensors of normal numbers. Each tensor is described by the names of its sizes, such
    as ("rows", "columns")."""

    def inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
        return then(*normal(dtype, device, seed, *(tuple(shape[name] for name in names) for names in tensors)))

    return inputs


def by_keyword(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return `function`, changed to take its last arguments by position. They are keyword arguments with these
    names."""
    return lambda *arguments: function(
        *arguments[: -len(names)], **dict(zip(names, arguments[-len(names) :], strict=True))
    )


def with_dropout(*tensors: Tensor) -> tuple[Any, ...]:
    return *tensors, 0.1, _SEED


def with_statistics(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    variance, mean = torch.var_mean(x.float(), -1, correction=0)
    return dy, x, weight, mean, torch.rsqrt(variance + 1e-5)


def _targets_of(rows: Tensor, vocabulary: int) -> Tensor:
    return torch.arange(rows.shape[0], device=rows.device) * 7919 % vocabulary


def with_targets(logits: Tensor) -> tuple[Tensor, ...]:
    row = torch.arange(logits.shape[0], device=logits.device)
    is_ignored = row % TARGETS_PER_IGNORED == TARGETS_PER_IGNORED - 1
    return logits, torch.where(is_ignored, -100, _targets_of(logits, logits.shape[1]))


def with_scaled_weight(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return hidden, weight / hidden.shape[1] ** 0.5, _targets_of(hidden, weight.shape[0])


def qkv_inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    """Make x, weight, heads, kv_heads, bias or None, cosines and sines or None."""
    heads, kv_heads, head_dim = shape["heads"], shape["kv_heads"], shape["head_dim"]
    rows = (heads + 2 * kv_heads) * head_dim
    sizes = (shape["batch"], shape["sequence"], shape["width"]), (rows, shape["width"]), (rows,)
    x, weight, bias = normal(dtype, device, seed, *sizes)
    rotary = qkv_projection.rotary_tables(shape["sequence"], head_dim, device=device) if shape["rotary"] else None
    return x, weight / shape["width"] ** 0.5, heads, kv_heads, bias if shape["bias"] else None, rotary


def torch_dropout(x: Tensor, bias: Tensor, p: float, seed: int) -> Tensor:
    """Run three operators. The mask is ours, drawn beforehand, since torch's own would differ."""
    return functional.gelu(x + bias) * _scaled_mask(tuple(x.shape), p, seed, x.device, x.dtype)


@lru_cache(maxsize=2)
def _scaled_mask(shape: tuple[int, ...], p: float, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    mask = fused.kept_mask(torch.empty(shape, device=device), p, seed)
    return mask.to(dtype) * fused.kept_scale(p)


def torch_rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def torch_layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def torch_layernorm_backward(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Run torch's own backward operator, on the given statistics, as ours does."""
    dtype = x.dtype if x.device.type == "cpu" else mean.dtype
    statistics = (statistic[:, None].to(dtype) for statistic in (mean, scale))
    shape = (x.shape[-1],)
    return torch.ops.aten.native_layer_norm_backward(dy, x, shape, *statistics, weight, weight, (True, True, True))


def loss_and_gradient(loss: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function: (*inputs, targets) → the loss, and its gradient for each input by autograd."""

    def both(*arguments: Tensor) -> tuple[Tensor, ...]:
        *inputs, targets = arguments
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        with torch.enable_grad():
            value = loss(*leaves, targets)
        return value.detach(), *torch.autograd.grad(value, leaves)

    return both


linear_gradients = loss_and_gradient
"""The same for (hidden, weight, targets)."""


def launch_loss_and_gradient(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    divisor = cross_entropy.count_kept(targets, -100)
    losses, gradient = cross_entropy.losses_and_gradient(logits, targets, divisor)
    assert gradient is not None
    return losses.sum() / divisor, gradient


qkv_reference = by_keyword(qkv_projection.reference, "heads", "kv_heads", "bias", "rotary")


def torch_qkv(*inputs: Any) -> tuple[Tensor, ...]:
    """Compute a linear layer, and the copy into contiguous heads that follows it."""
    return tuple(heads.contiguous() for heads in qkv_reference(*inputs))
