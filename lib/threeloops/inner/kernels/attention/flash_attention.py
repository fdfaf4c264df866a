"""FlashAttention-2: softmax(Q Kᵀ · scale) V without the matrix of scores ever leaving the chip.

Source: Dao, "FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691; online softmax: Milakov and Gimelshein (2018).

One program keeps BLOCK_M queries and walks over the keys, BLOCK_N at a time. It carries each row's maximum so far, the
sum of its exponentials so far, and the weighted values so far; when a tile brings a new maximum, the earlier sums are
scaled down to it. Under a causal mask, tiles above the diagonal are never visited and only those on it are masked.

Exponentials are powers of two: exp(x) = 2^(x · log₂e), and the scale contains log₂e.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.attention.flash_attention_backward import backward, backward_operator
from threeloops.inner.kernels.attention.sizes import (
    LARGEST_BLOCK,
    cost,
    heaviest_first,
    rows_in_one_piece,
    shipped,
    sizes_of,
    strides,
    visible_keys,
)
from threeloops.inner.kernels.launching import LOG2_E

__all__ = ["FlashAttention", "cost", "flash_attention", "flash_attention_kernel", "forward", "reference"]

_LOWEST = tl.constexpr(-3.4e38)
"""The running maximum before any score: finite, so that rows that see nothing give 2^(−∞ + 3.4e38) = 0, not ∞ − ∞."""

_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def flash_attention_kernel(
    q, k, v, output, lse,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_on,
    queries, keys, group, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, KEYS_ARE_WHOLE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    first_query = heaviest_first(tl.program_id(0), tl.num_programs(0), CAUSAL) * BLOCK_M
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    channels = tl.arange(0, HEAD_DIM)
    row_exists = rows < queries - first_query
    q += batch * stride_qb + head * stride_qh + tl.cast(first_query, tl.int64) * stride_qn
    k += batch * stride_kb + (head // group) * stride_kh
    v += batch * stride_vb + (head // group) * stride_vh
    k_offsets = columns[:, None] * stride_kn + channels[None, :]
    v_offsets = columns[:, None] * stride_vn + channels[None, :]
    q_values = tl.load(q + (rows[:, None] * stride_qn + channels[None, :]), mask=row_exists[:, None], other=0.0)

    last_visible, seen_by_all, seen_by_any = visible_keys(first_query, queries, keys, BLOCK_M, CAUSAL)
    maximum = tl.full((BLOCK_M,), _LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    values = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for start in range(0, seen_by_any, BLOCK_N):
        if KEYS_ARE_WHOLE:
            k_values = tl.load(k + k_offsets)
            v_values = tl.load(v + v_offsets)
        else:
            key_exists = (columns < keys - start)[:, None]
            k_values = tl.load(k + k_offsets, mask=key_exists, other=0.0)
            v_values = tl.load(v + v_offsets, mask=key_exists, other=0.0)
        scores = tl.dot(q_values, k_values.T, input_precision=INPUT_PRECISION)
        if CAUSAL or not KEYS_ARE_WHOLE:  # noqa: SIM102 (known when compiled; what follows, when the kernel runs)
            if start + BLOCK_N > seen_by_all:
                scores = tl.where((start + columns)[None, :] <= last_visible[:, None], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new_maximum[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.sum(weights, 1)
        values = values * rescale[:, None]
        values = tl.dot(weights.to(v_values.dtype), v_values, values, input_precision=INPUT_PRECISION)
        maximum = new_maximum
        k += BLOCK_N * stride_kn
        v += BLOCK_N * stride_vn

    sees_nothing = total == 0
    values = values * (1.0 / tl.where(sees_nothing, 1.0, total))[:, None]
    output += batch * stride_ob + head * stride_oh + tl.cast(first_query, tl.int64) * stride_on
    output_tile = output + (rows[:, None] * stride_on + channels[None, :])
    tl.store(output_tile, values.to(output.dtype.element_ty), mask=row_exists[:, None])
    log_sum = tl.where(sees_nothing, float("-inf"), (maximum + tl.log2(total)) * _LN_2)
    lse += (batch * tl.num_programs(1) + head) * queries + first_query
    tl.store(lse + rows, log_sum, mask=row_exists)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    block_m: int | None = None,
    block_n: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Compute softmax(q kᵀ · softmax_scale) v: (batch, heads, queries, head_dim), laid out in memory like q.

    k and v are (batch, kv_heads, keys, head_dim); heads is a multiple of kv_heads, and each key head serves heads /
    kv_heads consecutive query heads. fp16, bf16 or float32 (multiplied in full, without tensor cores); head_dim 16, 32,
    64 or 128; any lengths and strides. `softmax_scale` is 1/√head_dim unless given.

    `causal` aligns the last query with the last key, so query i sees keys 0 … i + keys − queries. A row that sees
    nothing gives zeros, and −∞ as its log-sum-exp. With `return_lse` the log-sum-exp is returned too: (batch, heads,
    queries), float32, natural logarithm; it is needed to combine results over two parts of the keys. `block_m` and
    `block_n` replace the shipped tile sizes.

    Differentiable, also through the log-sum-exp; torch.compile sees one operator. Raises ValueError for arguments that
    it cannot compute.
    """
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    run = _forward_operator if torch.compiler.is_compiling() else FlashAttention.apply
    output, lse = run(q, k, v, causal, scale, block_m, block_n)
    return (output, lse) if return_lse else output


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    softmax_scale: float,
    block_m: int | None,
    block_n: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and log-sum-exp, without a derivative."""
    sizes = sizes_of(q, k, v, softmax_scale)
    for name, block in (("block_m", block_m), ("block_n", block_n)):
        if block is not None and (not 16 <= block <= LARGEST_BLOCK or block & (block - 1)):
            raise ValueError(f"{name} = {block}: expected a power of two from 16 to {LARGEST_BLOCK}")
    q, k, v = rows_in_one_piece(q, k, v)
    output, lse = _empty_results(q)
    if not sizes.rows:
        return output, lse
    tiles = shipped(q.dtype, sizes.head_dim).forward
    tiles = replace(tiles, rows=block_m or tiles.rows, keys=block_n or tiles.keys)
    flash_attention_kernel[triton.cdiv(sizes.queries, tiles.rows), sizes.heads, sizes.batch](
        q, k, v, output, lse, *strides(q, k, v, output),
        sizes.queries, sizes.keys, sizes.group, softmax_scale * LOG2_E,
        CAUSAL=causal, KEYS_ARE_WHOLE=sizes.keys % tiles.keys == 0, INPUT_PRECISION="ieee",
        **tiles.options(sizes.head_dim),
    )  # fmt: skip
    return output, lse


def _empty_results(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, ctx.causal, ctx.softmax_scale, _, _ = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any,
    output_gradient: torch.Tensor | None,
    lse_gradient: torch.Tensor | None,
    run: Callable[..., tuple[torch.Tensor, ...]] = backward,
) -> tuple[torch.Tensor | None, ...]:
    q, k, v, output, lse = ctx.saved_tensors
    if output_gradient is None and lse_gradient is None:
        return (None,) * 7
    if output_gradient is None:
        output_gradient = torch.zeros_like(output)
    gradients = run(output_gradient, lse_gradient, q, k, v, output, lse, ctx.causal, ctx.softmax_scale)
    return *gradients, None, None, None, None


class FlashAttention(torch.autograd.Function):
    """Used outside of torch.compile. Recordings rely on launches for "meta" tensors, and the operator makes none for
    these."""

    forward = staticmethod(forward)
    setup_context = staticmethod(_save_for_backward)
    backward = staticmethod(_differentiate)


_forward_operator = torch.library.custom_op("threeloops::flash_attention", forward, mutates_args=())
"""`forward` as one opaque node of the graph that torch.compile traces."""


@_forward_operator.register_fake
def _(q, k, v, causal, softmax_scale, block_m, block_n):
    return _empty_results(*rows_in_one_piece(q))


_forward_operator.register_autograd(partial(_differentiate, run=backward_operator), setup_context=_save_for_backward)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, softmax_scale: float | None = None
) -> torch.Tensor:
    """Compute the same in PyTorch, with the matrix of scores in memory. Grouped heads share keys and values by
    broadcasting."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, queries, head_dim)
    scores = grouped @ k[:, :, None].mT * scale
    if causal:
        visible = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        scores = scores.masked_fill(~visible, torch.finfo(q.dtype).min)
        weights = torch.softmax(scores, -1) * visible
    else:
        weights = torch.softmax(scores, -1)
    return (weights @ v[:, :, None]).reshape(q.shape)
