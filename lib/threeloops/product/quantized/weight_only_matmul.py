"""x Ŵᵀ for weights of few bits: codes are read from memory, and become numbers in registers.

Decoding reads every weight once for a handful of tokens, so its time is the bytes of the weights over the bandwidth. A
quarter of the bytes takes a quarter of the time, as long as nothing else is slower. (Frantar et al. 2024, "MARLIN",
reach this for batches of up to 16 to 32 tokens.)

One program computes BLOCK_N outputs of BLOCK_M tokens, a group of inputs at a time. code − zero is a small whole
number, exact in 16 bits. The scale of the group multiplies the float32 sum of its products. No weight is ever rounded
to the dtype of x. The weights are the left factor, in registers, because tensor cores want at least 64 rows on that
side, and there are few tokens but many outputs.

A single token leaves few programs. So the inputs are cut into parts, one program each, whose sums are added afterwards.
The number of parts depends only on the weight, so a token's sums are cut in the same way whatever else is in the batch.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Configuration, target
from threeloops.product.quantized.group import QuantizedWeight, Scheme

__all__ = ["cost", "reference", "weight_only_matmul", "weight_only_matmul_kernel"]

_STEPS_PER_PART = 4
"""Fewer would spend more time on adding the parts than they save."""


def _configuration(tokens: int, group: int, dtype: torch.dtype) -> Configuration:
    """Deep tiles keep many bytes in flight; float32 factors take twice the room, and plain multiply-adds."""
    block_m = min(max(16, triton.next_power_of_2(tokens)), 64)
    block_k = min(group, 32 if dtype == torch.float32 else 128)
    blocks = {"BLOCK_M": block_m, "BLOCK_N": 64, "BLOCK_K": block_k}
    return Configuration(blocks, num_warps=4, num_stages=2 if target() == "gfx942" else 4)


@triton.jit
def _numbers(codes, zero, BITS: tl.constexpr, dtype: tl.constexpr):
    """code − zero in `dtype`, exact. A code that is or-ed into the lowest bits of 2^10 (float16), 2^7 (bfloat16) or
    2^23 (float32) makes that number plus the code; conversions of integers would run at a quarter of the speed.
    """
    if dtype == tl.float16:
        return ((codes.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)) - (zero + 1024).to(tl.float16)
    if dtype == tl.bfloat16 and BITS == 4:
        return ((codes.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)) - (zero + 128).to(tl.bfloat16)
    return ((codes.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (zero + 8388608).to(tl.float32)).to(dtype)


@triton.jit
def weight_only_matmul_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    m,
    n,
    k,
    groups,
    row_bytes,
    steps_per_part,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    output_exists = output < n
    token_exists = token < m
    inner = tl.arange(0, BLOCK_K)
    byte = tl.arange(0, BLOCK_K * BITS // 8)
    code_rows = codes_ptr + output.to(tl.int64)[:, None] * row_bytes
    group_row = output.to(tl.int64) * groups
    x_rows = x_ptr + token.to(tl.int64)[None, :] * k
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    first_step = tl.program_id(2) * steps_per_part
    last_step = tl.minimum(first_step + steps_per_part, tl.cdiv(k, BLOCK_K))
    for step in tl.range(first_step, last_step, num_stages=STAGES):
        start = step * BLOCK_K
        # What is read beyond the row's end are codes like any other; x is 0 there.
        x = tl.load(
            x_rows + start + inner[:, None], mask=token_exists[None, :] & (inner < k - start)[:, None], other=0.0
        )
        place = start * BITS // 8 + byte
        codes = tl.load(code_rows + place[None, :], mask=output_exists[:, None] & (place < row_bytes)[None, :], other=0)
        if BITS == 4:
            codes = tl.interleave(codes & 15, codes >> 4)
        scale = tl.load(scales_ptr + group_row + start // GROUP, mask=output_exists, other=0.0).to(tl.float32)
        if zeros_ptr is None:
            zero = tl.full([BLOCK_N], 1 << (BITS - 1), tl.int32)
        else:
            zero = tl.load(zeros_ptr + group_row + start // GROUP, mask=output_exists, other=0).to(tl.int32)
        weight = _numbers(codes, zero[:, None], BITS, x_ptr.dtype.element_ty)
        total += tl.dot(weight, x, input_precision="ieee") * scale[:, None]
    out = out_ptr + tl.program_id(2).to(tl.int64) * m * n + token.to(tl.int64)[None, :] * n + output[:, None]
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=output_exists[:, None] & token_exists[None, :])


def weight_only_matmul(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """x Ŵᵀ: (…, columns of the weight) → (…, rows of the weight), in x's dtype: float16, bfloat16 or float32.

    Sums are float32. It is meant for up to some dozens of tokens. For more, arithmetic takes longer than reading, and
    it is faster to dequantise first. It is not differentiable. Raises ValueError for arguments that do not fit.
    """
    launching.require_tensors(x=x)
    launching.require_dtypes((torch.uint8,), codes=weight.codes, zeros=weight.zeros)
    launching.require_one_device(x=x, codes=weight.codes, scales=weight.scales, zeros=weight.zeros)
    if launching.require_columns("x", x) != weight.columns:
        raise ValueError(
            f"x has {x.shape[-1]} columns: expected {weight.columns}, those of the weight; transpose x, or look for "
            "the layer that it belongs to"
        )
    scheme = weight.scheme
    n = weight.rows
    k = weight.columns
    tokens = x.reshape(-1, k).contiguous()
    m = len(tokens)
    if not m:
        return x.new_empty(*x.shape[:-1], n)
    chosen = _configuration(m, scheme.group, x.dtype)
    blocks = chosen.constants
    steps = triton.cdiv(k, blocks["BLOCK_K"])
    parts, steps_per_part = _parts(triton.cdiv(n, blocks["BLOCK_N"]), steps)
    out = torch.empty(parts, m, n, dtype=x.dtype if parts == 1 else torch.float32, device=x.device)
    weight_only_matmul_kernel[(triton.cdiv(n, blocks["BLOCK_N"]), triton.cdiv(m, blocks["BLOCK_M"]), parts)](
        tokens,
        weight.codes.contiguous(),
        weight.scales.contiguous(),
        None if weight.zeros is None else weight.zeros.contiguous(),
        out,
        m,
        n,
        k,
        weight.scales.shape[1],
        weight.codes.shape[1],
        steps_per_part,
        BITS=scheme.bits,
        GROUP=scheme.group,
        STAGES=chosen.num_stages,
        **chosen.options(),
    )
    total = out[0] if parts == 1 else out.sum(0).to(x.dtype)
    return total.view(*x.shape[:-1], n)


def _parts(programs: int, steps: int) -> tuple[int, int]:
    """Into how many parts the steps along the inputs are cut, so that two programs fit each multiprocessor; and the
    steps of a part."""
    wanted = triton.cdiv(2 * launching.multiprocessors(), programs)
    steps_per_part = max(_STEPS_PER_PART, triton.cdiv(steps, wanted))
    return triton.cdiv(steps, steps_per_part), steps_per_part


def reference(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """The same in PyTorch: in float32, or in x's dtype if that is wider, rounded once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) @ weight.dequantize(wide).T).to(x.dtype)


def cost(m: int, columns: int, rows: int, scheme: Scheme, bytes_per_element: float = 2) -> Work:
    """Reads x and the codes, scales and zero points; writes the outputs. Two FLOPs per token and weight.

    The arithmetic that unpacks codes is left out, and so are the sums of parts, 4 bytes for each part and output.
    """
    costs.require_positive(m=m, columns=columns, rows=rows, bytes_per_element=bytes_per_element)
    return Work(m * (columns + rows) * bytes_per_element + scheme.nbytes(rows, columns), 2 * m * columns * rows)
