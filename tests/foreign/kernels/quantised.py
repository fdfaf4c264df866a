"""Quantised numbers: blocks with a scale, packed nibbles, lookup tables, fp8 rows, integer products."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernels import FP16, FP32, INT32, case


@triton.jit
def block_quantise_kernel(x, out, scales, n, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    largest = tl.max(tl.abs(value), axis=0)
    tl.store(scales + block, largest)
    tl.store(out + at, libdevice.rint(value * (127.0 / largest)).to(tl.int8), mask=at < n)


@case(loaded=FP32 * 150, stored=150 + FP32 * 3)
def quantisation_of_blocks_to_int8():
    """Store the largest magnitude of a block, and round to even with libdevice."""
    x = torch.randint(-500, 500, (150,)).float()
    out, scales = torch.empty(150, dtype=torch.int8), torch.empty(3)
    block_quantise_kernel[(3,)](x, out, scales, 150, BLOCK=64)
    largest = torch.stack([part.abs().max() for part in x.split(64)])
    spread = largest.repeat_interleave(64)[:150]
    return (out, scales), ((x * (127.0 / spread)).round(), largest)


CODE = torch.linspace(-1, 1, 16).sign() * torch.linspace(-1, 1, 16).square()


@triton.jit
def lookup_kernel(packed, code, scales, out, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(packed + at)
    scale = tl.load(scales + at // (GROUP // 2))
    high = tl.load(code + (byte >> 4)) * scale
    low = tl.load(code + (byte & 0xF)) * scale
    tl.store(out + tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK), tl.interleave(high, low))


@case(loaded=64 + FP32 * 16 + FP32 * 4, stored=FP32 * 128)
def four_bit_lookup():
    """Look nibbles up in a table of 16 numbers, scale them by group, and interleave the two halves."""
    packed, scales = torch.arange(64, dtype=torch.uint8) * 37, torch.rand(4)
    code = CODE.to(packed.device)
    out = torch.empty(128)
    lookup_kernel[(2,)](packed, code, scales, out, BLOCK=32, GROUP=32)
    nibbles = torch.stack([packed >> 4, packed & 15], 1).flatten().long()
    return out, code[nibbles] * scales.repeat_interleave(32)


@triton.jit
def nested_scale_kernel(x, scales, outer, offset, out, BLOCK: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.load(scales + at // INNER).to(tl.float32) / 255.0
    scale = inner * tl.load(outer + at // (INNER * OUTER)) + tl.load(offset)
    tl.store(out + at, (tl.load(x + at) * scale).to(tl.bfloat16))


@case(loaded=128 + 16 + FP32 * 4 + FP32, stored=2 * 128, tolerance=5e-3)
def scales_that_are_quantised_themselves():
    """Dequantise the scales of groups of 8 numbers by a scale per 4 groups and an offset; store bfloat16."""
    x, scales = torch.randint(-128, 128, (128,), dtype=torch.int8), torch.arange(16, dtype=torch.uint8) * 15
    outer, offset, out = torch.rand(4), torch.tensor([0.1]), torch.empty(128, dtype=torch.bfloat16)
    nested_scale_kernel[(4,)](x, scales, outer, offset, out, BLOCK=32, INNER=8, OUTER=4)
    scale = scales.double() / 255 * outer.double().repeat_interleave(4) + offset
    return out, x.double() * scale.repeat_interleave(8)


@triton.jit
def pack_kernel(x, out, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    value = tl.load(x + block * BLOCK * 2 + tl.arange(0, BLOCK * 2))
    low, high = tl.split(tl.reshape(value & 0xF, (BLOCK, 2)))
    tl.store(out + block * BLOCK + tl.arange(0, BLOCK), (low | (high << 4)).to(tl.uint8))


@case(loaded=INT32 * 64, stored=32)
def packing_of_nibbles():
    """Split neighbours and pack the lower four bits of both into a byte."""
    x = torch.randint(-8, 8, (64,), dtype=torch.int32)
    out = torch.empty(32, dtype=torch.uint8)
    pack_kernel[(2,)](x, out, BLOCK=16)
    low, high = (x & 15).view(32, 2).unbind(1)
    return out, low + 16 * high


@triton.jit
def fp8_rows_kernel(x, out, scales, columns, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value)), 1e-10) / LARGEST
    tl.store(scales + row, scale)
    scaled = tl.clamp(value / scale, -LARGEST, LARGEST)
    tl.store(out + row * columns + at, scaled.to(out.dtype.element_ty), mask=at < columns)


@case(loaded=2 * 4 * 50, stored=4 * 50 + FP32 * 4, tolerance=1e-6)
def quantisation_of_rows_to_fp8():
    """Scale rows of bfloat16 to the range of e4m3 and convert them."""
    x = torch.randn(4, 50).bfloat16()
    out, scales = torch.empty(4, 50, dtype=torch.float8_e4m3fn), torch.empty(4)
    fp8_rows_kernel[(4,)](x, out, scales, 50, LARGEST=448.0, BLOCK=64)
    scale = x.float().abs().amax(1) / 448
    return (out, scales), ((x.float() / scale[:, None]).to(torch.float8_e4m3fn), scale)


@triton.jit
def int4_product_kernel(
    a, packed, scales, zeros, c, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    m, n = tl.arange(0, BLOCK), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, GROUP):
        k = start + tl.arange(0, GROUP)
        word = tl.load(packed + (k // 8)[:, None] * N + n[None, :])
        nibble = (word >> ((k % 8) * 4)[:, None]) & 0xF
        scale, zero = tl.load(scales + start // GROUP * N + n), tl.load(zeros + start // GROUP * N + n)
        weight = ((nibble - zero[None, :]) * scale[None, :]).to(tl.float16)
        total = tl.dot(tl.load(a + m[:, None] * K + k[None, :]), weight, total)
    tl.store(c + m[:, None] * N + n[None, :], total)


@case(
    # Eight nibbles to a word of 32 bits; a scale and a zero point per column and group of 16.
    loaded=FP16 * 16 * 32 + INT32 * 4 * 32 + (FP32 + INT32) * 2 * 32,
    stored=FP32 * 16 * 32,
    tolerance=1e-2,
    compiles_slowly=True,
)
def product_with_four_bit_weights():
    """Unpack eight weights from every word by shifts, subtract a zero point, and multiply."""
    a, packed = torch.randn(16, 32).half(), torch.randint(-(2**31), 2**31, (4, 32), dtype=torch.int32)
    scales, zeros = torch.rand(2, 32), torch.randint(0, 16, (2, 32), dtype=torch.int32)
    c = torch.empty(16, 32)
    int4_product_kernel[(2,)](a, packed, scales, zeros, c, N=32, K=32, GROUP=16, BLOCK=16)
    nibbles = torch.stack([(packed >> 4 * place) & 15 for place in range(8)], 1).view(32, 32)
    weight = (nibbles - zeros.repeat_interleave(16, 0)).double() * scales.repeat_interleave(16, 0)
    return c, a.double() @ weight.half().double()


@triton.jit
def int8_product_kernel(a, b, a_scale, b_scale, c, K: tl.constexpr, BLOCK: tl.constexpr):
    m, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.int32)
    for start in range(0, K, 32):
        k = start + tl.arange(0, 32)
        left, right = tl.load(a + m[:, None] * K + k), tl.load(b + n[None, :] * K + k[:, None])
        total = tl.dot(left, right, total, out_dtype=tl.int32)
    scale = tl.load(a_scale + m)[:, None] * tl.load(b_scale + n)[None, :]
    tl.store(c + m[:, None] * 2 * BLOCK + n[None, :], total * scale)


@case(loaded=2 * 32 * 64 + FP32 * 2 * 32, stored=FP32 * 32 * 32, tolerance=1e-6, compiles_slowly=True)
def product_of_int8_with_scales():
    """Add up products of int8 in int32, and scale rows and columns at the end."""
    a, b = torch.randint(-128, 128, (2, 32, 64), dtype=torch.int8).unbind()
    a_scale, b_scale, c = torch.rand(32), torch.rand(32), torch.empty(32, 32)
    int8_product_kernel[(2, 2)](a, b, a_scale, b_scale, c, K=64, BLOCK=16)
    return c, (a.double() @ b.double().T) * a_scale[:, None] * b_scale


@triton.jit
def exponent_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    bits = tl.load(x + at).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    power = (exponent << 23).to(tl.float32, bitcast=True)
    tl.store(out + at, exponent.to(tl.uint8))
    tl.store(x + at, power)


@case(loaded=FP32 * 32, stored=32 + FP32 * 32)
def power_of_two_scales_by_their_bits():
    """Read the exponent of a float from its bits and build the power of two from it."""
    x = torch.randn(32).exp()
    expected = x.log2().floor()
    out = torch.empty(32, dtype=torch.uint8)
    exponent_kernel[(1,)](x, out, BLOCK=32)
    return (out, x), (expected + 127, expected.double().exp2())
