"""Kernels that compute one element at a time: activations, dropout, rotary embeddings, optimizer steps."""

import math

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernels import FP16, FP32, case


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@case(loaded=2 * FP32 * 1000, stored=FP32 * 1000)
def vector_addition():
    """Add two vectors whose length is not a multiple of the block."""
    x, y = torch.randn(2, 1000).unbind()
    out = torch.empty(1000)
    add_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, out, 1000, BLOCK=256)
    return out, x + y


@triton.jit
def leaky_relu_kernel(x, out, slope, n, BLOCK: tl.constexpr):
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.where(value >= 0, value, value * slope.to(value.dtype)), mask=at < n)


@case(loaded=FP16 * 300, stored=FP16 * 300, tolerance=1e-3)
def leaky_relu_in_half_precision():
    """Convert a float argument to the dtype of the data, which only works because the argument is a tensor."""
    x = torch.randn(300).half()
    out = torch.empty_like(x)
    leaky_relu_kernel[(3,)](x, out, 0.1, 300, BLOCK=128)
    return out, torch.nn.functional.leaky_relu(x.double(), 0.1)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def swiglu_kernel(gate, up, out, stride, columns: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * stride
    at = tl.arange(0, BLOCK)
    inside = at < columns
    gate_row = tl.load(gate + row + at, mask=inside, other=0).to(tl.float32)
    up_row = tl.load(up + row + at, mask=inside, other=0)
    tl.store(out + row + at, silu(gate_row).cast(up_row.dtype) * up_row, mask=inside)


@case(loaded=2 * 2 * 5 * 50, stored=2 * 5 * 50, tolerance=2e-2)
def swiglu():
    """Gate one bfloat16 matrix with the SiLU of another, with 64-bit row offsets and a helper function."""
    gate, up = torch.randn(2, 5, 50).bfloat16().unbind()
    out = torch.empty(5, 50, dtype=torch.bfloat16)
    swiglu_kernel[(5,)](gate, up, out, gate.stride(0), columns=50, BLOCK=64)
    return out, torch.nn.functional.silu(gate.double()) * up.double()


@triton.jit
def geglu_kernel(packed, out, HALF: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, HALF)
    gate = tl.load(packed + row * 2 * HALF + at)
    up = tl.load(packed + row * 2 * HALF + HALF + at)
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    tl.store(out + row * HALF + at, 0.5 * gate * (1 + libdevice.tanh(inner)) * up)


@case(loaded=FP32 * 3 * 64, stored=FP32 * 3 * 32, tolerance=1e-6)
def geglu_with_the_tanh_of_libdevice():
    """Split each row into two halves and gate one with the tanh form of GELU of the other."""
    packed = torch.randn(3, 64)
    out = torch.empty(3, 32)
    geglu_kernel[(3,)](packed, out, HALF=32)
    gate, up = packed.double().chunk(2, dim=1)
    return out, torch.nn.functional.gelu(gate, approximate="tanh") * up


def philox(seed, counter):
    """Return the first word of Philox4x32-10 for each counter (Salmon et al., 2011)."""
    words = [np.asarray(counter, np.uint64)] + [np.zeros(len(counter), np.uint64)] * 3
    key, low = [seed & 0xFFFFFFFF, seed >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        half = np.uint64(32)
        words = [
            *((second >> half) ^ words[1] ^ np.uint64(key[0]), second & low),
            *((first >> half) ^ words[3] ^ np.uint64(key[1]), first & low),
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words[0]


@triton.jit
def dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    kept = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(kept, value / (1 - p), 0.0), mask=at < n)


@case(loaded=FP32 * 200, stored=FP32 * 200, tolerance=1e-6)
def seeded_dropout():
    """Draw the mask of dropout from a seed and the position, so that the backward pass can draw it again."""
    x = torch.randn(200)
    out = torch.empty(200)
    dropout_kernel[(4,)](x, out, 200, 0.4, 123, BLOCK=64)
    words = philox(123, range(200)).astype(np.uint32).view(np.int32).astype(np.float64)
    uniform = torch.as_tensor(np.where(words < 0, -words - 1, words) / 2**31)
    return out, torch.where(uniform > 0.4, x.double() / 0.6, 0.0)


@triton.heuristics({"HAS_BIAS": lambda arguments: arguments["bias"] is not None})
@triton.jit
def bias_gelu_kernel(x, bias, out, columns, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    if HAS_BIAS:
        value += tl.load(bias + at, mask=at < columns, other=0.0)
    value = 0.5 * value * (1 + tl.erf(value * 0.7071067811865476))
    tl.store(out + row * columns + at, value, mask=at < columns)


@case(loaded=FP32 * (2 * 4 * 20 + 20), stored=FP32 * 2 * 4 * 20, tolerance=1e-6)
def bias_and_gelu_by_heuristics():
    """Let a heuristic decide whether there is a bias; run once with it and once without."""
    x, bias = torch.randn(4, 20), torch.randn(20)
    outs = torch.empty(4, 20), torch.empty(4, 20)
    for given, out in zip((bias, None), outs, strict=True):
        bias_gelu_kernel[(4,)](x, given, out, 20, BLOCK=32)
    return outs, (torch.nn.functional.gelu(x.double() + bias), torch.nn.functional.gelu(x.double()))


@triton.jit
def rope_kernel(q, cos, sin, heads: tl.constexpr, HALF: tl.constexpr, BACKWARD: tl.constexpr):
    token = tl.program_id(0)
    at = tl.arange(0, HALF)
    cosine, sine = tl.load(cos + token * HALF + at), tl.load(sin + token * HALF + at)
    if BACKWARD:
        sine = -sine
    for head in tl.static_range(heads):
        left = q + (token * heads + head) * 2 * HALF + at
        first, second = tl.load(left), tl.load(left + HALF)
        tl.store(left, first * cosine - second * sine)
        tl.store(left + HALF, second * cosine + first * sine)


@case(loaded=FP32 * (6 * 3 * 16 + 2 * 6 * 8), stored=FP32 * 6 * 3 * 16, tolerance=1e-6)
def rotary_embedding_in_place():
    """Rotate both halves of every head in place, with the loop over heads unrolled."""
    q, angle = torch.randn(6, 3, 16), torch.rand(6, 8)
    cos, sin = angle.cos(), angle.sin()
    first, second = q.double().chunk(2, dim=-1)
    rotated = (first * cos[:, None] - second * sin[:, None], second * cos[:, None] + first * sin[:, None])
    rope_kernel[(6,)](q, cos, sin, heads=3, HALF=8, BACKWARD=False)
    return q, torch.cat(rotated, -1)


@triton.jit
def outer_kernel(x, y, out, rows, columns, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(1) * BR + tl.arange(0, BR)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    product = tl.load(x + r, r < rows)[:, None] * tl.load(y + c, c < columns)[None, :]
    tl.store(out + r[:, None] * columns + c[None, :], product, (r < rows)[:, None] & (c < columns)[None, :])


@case(loaded=FP32 * (20 + 50), stored=FP32 * 20 * 50)
def outer_product():
    """Multiply a column with a row in blocks; the programs of a row of blocks load the same numbers."""
    x, y = torch.randn(20), torch.randn(50)
    out = torch.empty(20, 50)
    outer_kernel[(4, 3)](x, y, out, 20, 50, BR=8, BC=16)
    return out, x[:, None] * y


@triton.jit
def transpose_kernel(x, out, rows, columns, xs0, xs1, os0, os1, SIDE: tl.constexpr):
    r = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    c = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    tile = tl.load(x + r[:, None] * xs0 + c * xs1, mask=(r[:, None] < rows) & (c < columns))
    tl.store(out + c[:, None] * os0 + r * os1, tl.trans(tile), mask=(c[:, None] < columns) & (r < rows))


@case(loaded=FP16 * 33 * 45, stored=FP16 * 33 * 45)
def transposition_of_tiles():
    """Transpose a matrix tile by tile, with strides for both sides."""
    x = torch.randn(33, 45).half()
    out = torch.empty(45, 33, dtype=torch.half)
    transpose_kernel[(3, 3)](x, out, 33, 45, *x.stride(), *out.stride(), SIDE=16)
    return out, x.T


@triton.jit
def pixel_shuffle_kernel(x, out, C: tl.constexpr, S: tl.constexpr):
    at = tl.arange(0, C * S * S)
    tile = tl.reshape(tl.load(x + tl.program_id(0) * C * S * S + at), (C, S, S))
    tl.store(out + tl.program_id(0) * C * S * S + at, tl.reshape(tl.permute(tile, (2, 0, 1)), (C * S * S,)))


@case(loaded=FP32 * 2 * 64, stored=FP32 * 2 * 64)
def permutation_of_three_axes():
    """Turn a flat block into three axes, permute them and flatten it again."""
    x = torch.randn(2, 4, 4, 4)
    out = torch.empty(2, 4, 4, 4)
    pixel_shuffle_kernel[(2,)](x, out, C=4, S=4)
    return out, x.permute(0, 3, 1, 2)


@triton.jit
def scale_kernel(x, out, factor, negate, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0) * factor
    if negate:
        value = -value
    tl.store(out + at, value, mask=at < n)


@case(loaded=2 * FP32 * 40, stored=2 * FP32 * 40)
def branch_on_a_bool_argument():
    """Branch on a bool that is an argument and not a constant."""
    x = torch.randn(40)
    outs = torch.empty(40), torch.empty(40)
    for negate, out in zip((True, False), outs, strict=True):
        scale_kernel[(2,)](x, out, 2, negate, 40, BLOCK=32)
    return outs, (-2 * x, 2 * x)


@triton.jit
def adamw_kernel(p, g, m, v, lr, beta1, beta2, eps, decay, correction1, correction2, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    gradient = tl.load(g + at, inside, other=0)
    first = beta1 * tl.load(m + at, inside, other=0) + (1 - beta1) * gradient
    second = beta2 * tl.load(v + at, inside, other=0) + (1 - beta2) * gradient * gradient
    value = tl.load(p + at, inside, other=0) * (1 - lr * decay)
    value -= lr * (first / correction1) / (tl.sqrt(second / correction2) + eps)
    tl.store(p + at, value, inside)
    tl.store(m + at, first, inside)
    tl.store(v + at, second, inside)


@case(loaded=4 * FP32 * 100, stored=3 * FP32 * 100, tolerance=1e-6)
def adamw_step_in_place():
    """Update parameters and both moments in place, with seven float arguments."""
    p, g, m, v = torch.randn(4, 100).unbind()
    p, m, v = p.clone(), m.clone(), v.abs()
    first, second = 0.9 * m.double() + 0.1 * g, 0.99 * v.double() + 0.01 * g.double() ** 2
    step = first / 0.19 / ((second / 0.02).sqrt() + 1e-8)
    expected = p.double() * (1 - 0.01 * 0.1) - 0.01 * step, first, second
    adamw_kernel[(4,)](p, g, m, v, 0.01, 0.9, 0.99, 1e-8, 0.1, 0.19, 0.02, 100, BLOCK=32)
    return (p, m, v), expected


@triton.jit
def mish_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, eviction_policy="evict_first")
    soft = tl.where(value > 20, value, libdevice.log1p(libdevice.exp(value)))
    tl.store(out + at, libdevice.fma(value, libdevice.tanh(soft), 0.0), cache_modifier=".cs")


@case(loaded=FP32 * 64, stored=FP32 * 64, tolerance=1e-6)
def mish_with_libdevice():
    """Nest three functions of libdevice, with cache hints on the load and the store."""
    x = 10 * torch.randn(64)
    out = torch.empty(64)
    mish_kernel[(2,)](x, out, BLOCK=32)
    return out, torch.nn.functional.mish(x.double())


@triton.jit
def timestep_kernel(steps, out, log_period, HALF: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, HALF)
    angle = tl.load(steps + row) * tl.exp(-log_period * at / HALF)
    tl.store(out + row * 2 * HALF + at, tl.cos(angle))
    tl.store(out + row * 2 * HALF + HALF + at, tl.sin(angle))


@case(loaded=FP32 * 3, stored=FP32 * 3 * 16, tolerance=1e-5)
def sinusoidal_embedding():
    """Divide an integer range by a constant, which gives floats, and store two halves of a row."""
    steps = torch.tensor([0.0, 3.0, 40.0])
    out = torch.empty(3, 16)
    timestep_kernel[(3,)](steps, out, math.log(100.0), HALF=8)
    angle = steps.double()[:, None] * torch.exp(-math.log(100.0) * torch.arange(8, dtype=torch.float64) / 8)
    return out, torch.cat([angle.cos(), angle.sin()], 1)
