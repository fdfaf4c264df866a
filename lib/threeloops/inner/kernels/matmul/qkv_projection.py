"""Queries, keys and values in one launch, each written where attention wants it, and rotated on the way.

Sources: Ainslie et al., "GQA" (2023), for heads that share keys and values; Su et al., "RoFormer: Enhanced Transformer
with Rotary Position Embedding" (2021), for the rotation.

Three separate projections read x three times, and the shape of each result is (tokens, heads · head_dim). Attention
needs (batch, heads, sequence, head_dim), so each result has to be copied. Here the three weights are one matrix, and
each tile of the product works out where its columns belong, so there is no copy. The tile takes the rows of the weight
in such an order that the two dimensions of a pair, i and i + head_dim / 2, are adjacent, and one thread has both.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Configuration, target
from threeloops.inner.kernels.matmul.matmul import grouped_tile
from threeloops.inner.kernels.matmul.matrix_product import tiles_of

__all__ = ["cost", "qkv_projection", "qkv_projection_kernel", "reference", "rotary_tables"]


def rotary_tables(sequence: int, head_dim: int, base: float = 10000.0, device: torch.device | str = "cpu") -> tuple:
    """Return the cosines and sines of position · base^(−2i / head_dim): (sequence, head_dim / 2) float32 each."""
    frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)
    angle = torch.arange(sequence, dtype=torch.float64, device=device)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of dimensions i and i + head_dim / 2 of (…, sequence, head_dim) by its angle."""
    first, second = heads.chunk(2, dim=-1)
    rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return rotated.to(heads.dtype)


_LARGE = {
    "sm_80": tiles_of(128, 128, 32, num_warps=8, num_stages=4),
    "sm_90": tiles_of(128, 128, 64, num_warps=8, num_stages=4),
    "sm_100": tiles_of(128, 128, 64, num_warps=8, num_stages=4),
    "gfx942": tiles_of(128, 128, 64, num_warps=8, num_stages=2),
}
"""128 × 256 tiles spill, since the rotation holds cosines and sines beside the sums."""


def _configuration(dtype: torch.dtype) -> Configuration:
    if dtype != torch.float32:
        return _LARGE[target()]
    # Float32 is multiplied in full, by ordinary multiply-adds on NVIDIA's targets. AMD's warps are twice as wide, so a
    # tile must be deeper to give every thread 16 bytes of it.
    return tiles_of(64, 64, 32 if target() == "gfx942" else 16, num_warps=8, num_stages=2)


@triton.jit
def qkv_projection_kernel(
    x_ptr, weight_ptr, bias_ptr, cosine_ptr, sine_ptr, out_ptr, tokens, width, sequence, x_row_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    columns = (HEADS + 2 * KV_HEADS) * 2 * HALF
    tile = grouped_tile(tl.program_id(0), tl.cdiv(tokens, BLOCK_M), tl.cdiv(columns, BLOCK_N), GROUP_M)
    token = tile[0] * BLOCK_M + tl.arange(0, BLOCK_M)
    index = tile[1] * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_row = index // 2 // HALF * (2 * HALF) + index // 2 % HALF + index % 2 * HALF
    k = tl.arange(0, BLOCK_K)
    x_tile = x_ptr + token.to(tl.int64)[:, None] * x_row_stride + k[None, :]
    weight_tile = weight_ptr + weight_row.to(tl.int64)[None, :] * width + k[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, width, BLOCK_K):
        remaining = width - start
        x = tl.load(x_tile + start, mask=(token < tokens)[:, None] & (k < remaining)[None, :], other=0.0)
        weight = tl.load(weight_tile + start, mask=(index < columns)[None, :] & (k < remaining)[:, None], other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
    first, second = tl.split(tl.reshape(total, [BLOCK_M, BLOCK_N // 2, 2]))

    pair = (tile[1] * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2))[None, :]
    head, place = pair // HALF, pair % HALF
    token = token[:, None]
    inside = (token < tokens) & (pair < columns // 2)
    if bias_ptr is not None:
        bias = bias_ptr + head * (2 * HALF) + place
        first += tl.load(bias, mask=pair < columns // 2, other=0.0).to(tl.float32)
        second += tl.load(bias + HALF, mask=pair < columns // 2, other=0.0).to(tl.float32)
    if cosine_ptr is not None:
        turned = inside & (head < HEADS + KV_HEADS)  # values are not rotated
        cosine = tl.load(cosine_ptr + token % sequence * HALF + place, mask=turned, other=1.0)
        sine = tl.load(sine_ptr + token % sequence * HALF + place, mask=turned, other=0.0)
        first, second = first * cosine - second * sine, second * cosine + first * sine
    # The output holds all queries, then all keys, then all values.
    heads_before = tl.where(head < HEADS, 0, tl.where(head < HEADS + KV_HEADS, HEADS, HEADS + KV_HEADS))
    heads_here = tl.where(head < HEADS, HEADS, KV_HEADS)
    row = (token // sequence) * heads_here + head - heads_before
    row = heads_before.to(tl.int64) * tokens + row.to(tl.int64) * sequence + token % sequence
    out_tile = out_ptr + row * (2 * HALF) + place
    tl.store(out_tile, first.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out_tile + HALF, second.to(out_ptr.dtype.element_ty), mask=inside)


def qkv_projection(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias: torch.Tensor | None = None,
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute q (batch, heads, sequence, head_dim) and k, v (batch, kv_heads, sequence, head_dim), each contiguous, in
    x's dtype.

    Differentiable in x, weight and bias. The backward pass is torch.matmul's two products.

    Args:
        x: (batch, sequence, width) of float16, bfloat16 or float32. A tensor that is not contiguous is copied first.
        weight: ((heads + 2·kv_heads)·head_dim, width) of x's dtype, rows of all queries first, then keys, then values.
            head_dim is even.
        heads, kv_heads: kv_heads divides heads, which is its default.
        bias: one for each row of weight, of x's dtype.
        rotary: cosines and sines, (sequence, head_dim / 2) float32 each, from `rotary_tables`: queries and keys are
            rotated, dimension i with i + head_dim / 2.

    Sums are float32. A width that is a multiple of 16 is read 16 bytes at a time, others element by element.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    launching.require_dimensions("x", x, "batch, sequence, width")
    launching.require_tensors(x=x, weight=weight, bias=bias)
    launching.require_columns("x", x)
    launching.require_divides("kv_heads", kv_heads, "heads", heads)
    launching.require_shape("weight", weight, (weight.shape[0], x.shape[2]), "(all heads' dimensions, width of x)")
    head_dim, rest = divmod(weight.shape[0], heads + 2 * kv_heads)
    if rest or head_dim % 2 or not head_dim:
        raise ValueError(
            f"weight has {weight.shape[0]} rows: expected (heads + 2·kv_heads)·head_dim = "
            f"{heads + 2 * kv_heads}·head_dim with an even head_dim; check heads and kv_heads"
        )
    launching.require_shape("bias", bias, weight.shape[:1], "one for each row of weight")
    cosine, sine = rotary if rotary else (None, None)
    for name, table in (("rotary[0]", cosine), ("rotary[1]", sine)):
        launching.require_dtypes((torch.float32,), **{name: table})
        launching.require_shape(name, table, (x.shape[1], head_dim // 2), "(sequence, head_dim / 2)")
    launching.require_one_device(x=x, cosine=cosine, sine=sine)
    return _QKVProjection.apply(x, weight, bias, cosine, sine, heads, kv_heads)


class _QKVProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, cosine, sine, heads, kv_heads):
        ctx.save_for_backward(x, weight, bias, cosine, sine)
        x, weight = x.contiguous(), weight.contiguous()
        bias, cosine, sine = (None if tensor is None else tensor.contiguous() for tensor in (bias, cosine, sine))
        batch, sequence, width = x.shape
        tokens = batch * sequence
        head_dim = weight.shape[0] // (heads + 2 * kv_heads)
        out = torch.empty(tokens * weight.shape[0], dtype=x.dtype, device=x.device)
        if tokens:
            chosen = _configuration(x.dtype)
            sizes = chosen.constants
            grid = (triton.cdiv(tokens, sizes["BLOCK_M"]) * triton.cdiv(weight.shape[0], sizes["BLOCK_N"]),)
            qkv_projection_kernel[grid](
                x, weight, bias, cosine, sine, out, tokens, width, sequence, width,
                HEADS=heads, KV_HEADS=kv_heads, HALF=head_dim // 2, **chosen.options(),
            )  # fmt: skip
        numbers = heads, kv_heads, kv_heads
        parts = out.split([tokens * number * head_dim for number in numbers])
        q, k, v = (part.view(batch, number, sequence, head_dim) for part, number in zip(parts, numbers, strict=True))
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx, dq, dk, dv):
        x, weight, bias, cosine, sine = ctx.saved_tensors
        if cosine is not None:
            dq, dk = _rotate(dq, cosine, -sine), _rotate(dk, cosine, -sine)
        gradient = torch.cat([tensor.transpose(1, 2).flatten(2) for tensor in (dq, dk, dv)], dim=-1).flatten(0, 1)
        dx = (gradient @ weight).view(x.shape) if ctx.needs_input_grad[0] else None
        dweight = gradient.T @ x.flatten(0, 1) if ctx.needs_input_grad[1] else None
        dbias = gradient.sum(0) if bias is not None and ctx.needs_input_grad[2] else None
        return dx, dweight, dbias, None, None, None, None


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias: torch.Tensor | None = None,
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kv_heads = kv_heads or heads
    projected = torch.nn.functional.linear(x, weight, bias)
    q, k, v = projected.unflatten(-1, (heads + 2 * kv_heads, -1)).transpose(1, 2).split((heads, kv_heads, kv_heads), 1)
    return (_rotate(q, *rotary), _rotate(k, *rotary), v) if rotary else (q, k, v)


def cost(
    batch: int,
    sequence: int,
    width: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    bytes_per_element: float = 2,
    *,
    bias: bool = False,
    rotary: bool = False,
) -> Work:
    """Return the cost of one product (tokens, width) @ (width, dimensions of all heads), its bias, and two rotary
    tables in float32."""
    columns = (heads + 2 * kv_heads) * head_dim
    turned = batch * sequence * (heads + kv_heads) * head_dim
    product = costs.matmul(batch * sequence, width, columns, bytes_per_element)
    added = Work(columns * bytes_per_element, batch * sequence * columns) if bias else Work(0, 0)
    return product + added + (Work(4 * sequence * head_dim, 3 * turned) if rotary else Work(0, 0))
