"""Inputs of the row kernels, and torch's own operators on the same inputs."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from threeloops.inner.kernels.matmul import qkv_projection
from threeloops.inner.kernels.matmul.qkv_projection import rotary_tables
from threeloops.inner.kernels.rows import bias_gelu_dropout as fused
from threeloops.inner.kernels.rows import cross_entropy, fused_linear_cross_entropy
from threeloops.inner.kernels.rows.bias_gelu_dropout import bias_gelu_dropout_backward

SEED = 20_240_229
"""Of the dropout masks; a number like any other."""


def normal(dtype: torch.dtype, device: str, seed: int, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Tensors of normal numbers; unfilled ones on "meta"."""
    if device == "meta":
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(shape, dtype=dtype, device=device, generator=generator) for shape in shapes)


def saxpy_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    size = (shape["elements"],)
    return 2.5, *normal(dtype, device, seed, size, size)


def matrix(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return normal(dtype, device, seed, (shape["rows"], shape["columns"]))


def matrix_and_vectors(vectors: int, matrices: int = 1) -> Callable[..., tuple[Any, ...]]:
    """Inputs: so many (rows, columns) matrices, then so many (columns,) vectors."""

    def inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
        sizes = [(shape["rows"], shape["columns"])] * matrices + [(shape["columns"],)] * vectors
        return normal(dtype, device, seed, *sizes)

    return inputs


def dropout_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *matrix_and_vectors(1)(shape, dtype, device, seed), shape.get("p", 0.1), SEED


def dropout_backward_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *matrix_and_vectors(1, 2)(shape, dtype, device, seed), shape.get("p", 0.1), SEED


def softmax_backward_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    dy, x = matrix_and_vectors(0, 2)(shape, dtype, device, seed)
    return dy, x.softmax(-1)


def rmsnorm_backward_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    dy, x, weight = matrix_and_vectors(1, 2)(shape, dtype, device, seed)
    return dy, x, weight, torch.rsqrt(x.float().square().mean(-1) + 1e-6)


def layernorm_backward_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    dy, x, weight = matrix_and_vectors(1, 2)(shape, dtype, device, seed)
    variance, mean = torch.var_mean(x.float(), -1, correction=0)
    return dy, x, weight, mean, torch.rsqrt(variance + 1e-5)


def cross_entropy_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    """One target in eight is ignored."""
    rows, vocabulary = shape["rows"], shape["vocabulary"]
    (logits,) = normal(dtype, device, seed, (rows, vocabulary))
    targets = torch.arange(rows, device=device) * 7919 % vocabulary
    return logits, torch.where(torch.arange(rows, device=device) % 8 == 7, -100, targets)


def ignored(rows: int) -> int:
    return rows // 8


def fused_linear_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    rows, width, vocabulary = shape["rows"], shape["width"], shape["vocabulary"]
    hidden, weight = normal(dtype, device, seed, (rows, width), (vocabulary, width))
    return hidden, weight / width**0.5, torch.arange(rows, device=device) * 7919 % vocabulary


def qkv_inputs(shape: Any, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    """x, weight, heads, kv_heads, bias or None, cosines and sines or None."""
    batch, sequence, width, heads, kv_heads, head_dim = (shape[name] for name in QKV_SIZES)
    rows = (heads + 2 * kv_heads) * head_dim
    x, weight, bias = normal(dtype, device, seed, (batch, sequence, width), (rows, width), (rows,))
    rotary = rotary_tables(sequence, head_dim, device=device) if shape["rotary"] else None
    return x, weight / width**0.5, heads, kv_heads, bias if shape["bias"] else None, rotary


QKV_SIZES = ("batch", "sequence", "width", "heads", "kv_heads", "head_dim")


def launch_dropout(x: Tensor, bias: Tensor, p: float, seed: int) -> Tensor:
    return fused.bias_gelu_dropout(x, bias, p, seed=seed)


def dropout_reference(x: Tensor, bias: Tensor, p: float, seed: int) -> Tensor:
    return fused.reference(x, bias, p, seed=seed)


def torch_dropout(x: Tensor, bias: Tensor, p: float, seed: int) -> Tensor:
    """Three operators. The mask is ours, drawn beforehand, since torch's own would be another one."""
    return functional.gelu(x + bias) * scaled_mask(tuple(x.shape), p, seed, x.device, x.dtype)


@lru_cache(maxsize=2)
def scaled_mask(shape: tuple[int, ...], p: float, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    mask = fused.kept_mask(torch.empty(shape, device=device), p, seed)
    return mask.to(dtype) * fused.kept_scale(p)


def launch_dropout_backward(dy: Tensor, x: Tensor, bias: Tensor, p: float, seed: int) -> tuple[Tensor, ...]:
    return bias_gelu_dropout_backward(dy, x, bias, p, seed, tanh=False)


def with_gradients(function: Callable[..., Tensor], differentiated: int) -> Callable[..., tuple[Tensor, ...]]:
    """(dy, *inputs) → the gradients of `function`'s first `differentiated` inputs, by autograd."""

    def gradients(dy: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        leaves = [each.detach().requires_grad_() for each in inputs[:differentiated]]
        with torch.enable_grad():
            output = function(*leaves, *inputs[differentiated:])
        return torch.autograd.grad(output, leaves, dy)

    return gradients


def torch_rmsnorm(x: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def torch_layernorm(x: Tensor, weight: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def torch_layernorm_backward(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """torch's own backward operator, on statistics that are there already, as ours has them."""
    statistics = mean[:, None].to(x.dtype if x.device.type == "cpu" else mean.dtype), scale[:, None]
    shape = (x.shape[-1],)
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, shape, statistics[0], statistics[1].to(statistics[0].dtype), weight, weight, (True, True, True)
    )


def loss_and_gradient(loss: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The loss of (logits, targets), and its gradient by autograd."""

    def both(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        leaf = logits.detach().requires_grad_()
        with torch.enable_grad():
            value = loss(leaf, targets)
        return value.detach(), torch.autograd.grad(value, leaf)[0]

    return both


def launch_loss_and_gradient(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    kept = cross_entropy.count_kept(targets, -100)
    losses, gradient = cross_entropy.losses_and_gradient(logits, targets, kept)
    assert gradient is not None
    return losses.sum() / kept, gradient


def torch_fused_linear(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(hidden @ weight.T, targets)


def linear_gradients(loss: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """The loss of (hidden, weight, targets), and its two gradients by autograd."""

    def all_three(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        leaves = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
        with torch.enable_grad():
            value = loss(*leaves, targets)
        return value.detach(), *torch.autograd.grad(value, leaves)

    return all_three


launch_fused_linear = linear_gradients(fused_linear_cross_entropy.fused_linear_cross_entropy)


def launch_qkv(x: Tensor, weight: Tensor, heads: int, kv_heads: int, bias: Any, rotary: Any) -> tuple[Tensor, ...]:
    return qkv_projection.qkv_projection(x, weight, heads=heads, kv_heads=kv_heads, bias=bias, rotary=rotary)


def qkv_reference(x: Tensor, weight: Tensor, heads: int, kv_heads: int, bias: Any, rotary: Any) -> tuple[Tensor, ...]:
    return qkv_projection.reference(x, weight, heads=heads, kv_heads=kv_heads, bias=bias, rotary=rotary)


def torch_qkv(x: Tensor, weight: Tensor, heads: int, kv_heads: int, bias: Any, rotary: Any) -> tuple[Tensor, ...]:
    """A linear layer, and the copy into contiguous heads that follows it."""
    return tuple(each.contiguous() for each in qkv_reference(x, weight, heads, kv_heads, bias, rotary))
