"""The kernels of `interpreter.preflight`, each with what it must answer. Imported once interpreting is decided: Triton
decides at decoration."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Probe:
    """`wrong()` runs kernels and says what is wrong, in words; empty where they are right."""

    name: str
    what: str
    wrong: Callable[[], str]


@triton.jit
def count_up(out, n):
    for i in range(n):
        tl.store(out + i, i)


@triton.jit
def add_and_compare(x, y, out, constant: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    left, right = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.where(left < right, left * right + constant, -left))


@triton.jit
def convert(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def dot_16(left, right, out):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + at, tl.dot(tl.load(left + at), tl.load(right + at)))


@triton.jit
def product(left, right):
    return left * right


@triton.jit
def reduce_rows(x, sums, products):
    row = tl.arange(0, 4)
    tile = tl.load(x + row[:, None] * 4 + row[None, :])
    tl.store(sums + row, tl.sum(tile, 1))
    tl.store(products + row, tl.reduce(tile, 1, product))


@triton.jit
def error_function(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.erf(tl.load(x + at)))


@triton.jit
def add_atomically(x, out):
    tl.atomic_add(out + tl.arange(0, 4) * 0, tl.load(x + tl.arange(0, 4)))


@triton.jit
def load_block(x, out):
    block = tl.make_tensor_descriptor(x, shape=[4, 8], strides=[8, 1], block_shape=[4, 8])
    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(out + at, block.load([0, 0]) + 1.0)


def differs(actual: torch.Tensor, expected: torch.Tensor) -> str:
    actual, expected = actual.double(), expected.double()
    if torch.equal(actual, expected):
        return ""
    at = int((actual != expected).ravel().nonzero()[0])
    return f"{actual.ravel()[at]:g} where {expected.ravel()[at]:g} is right"


def loop_bound() -> str:
    out = torch.zeros(4)
    count_up[(1,)](out, 4)
    return differs(out, torch.arange(4.0))


def bf16_arithmetic() -> str:
    x = torch.tensor([1.0, -2.5, 3.0, 1.0078125], dtype=torch.bfloat16)
    y = torch.tensor([2.0, -4.0, 3.5, 7.0], dtype=torch.bfloat16)
    out = torch.zeros_like(x)
    add_and_compare[(1,)](x, y, out, 0.5, SIZE=4)
    return differs(out, torch.where(x < y, x * y + 0.5, -x))


def bf16_rounding() -> str:
    x = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38])
    out = torch.zeros(4, dtype=torch.bfloat16)
    convert[(1,)](x, out, SIZE=4)
    return differs(out, x.bfloat16())


def fp8_rounding() -> str:
    x = torch.tensor([17.0, 19.0, 448.0, 1e6])
    out = torch.zeros(4, dtype=torch.float8_e4m3fn)
    convert[(1,)](x, out, SIZE=4)
    return differs(out.float(), torch.tensor([16.0, 20.0, 448.0, 448.0]))


def bf16_dot() -> str:
    ones, out = torch.ones(16, 16, dtype=torch.bfloat16), torch.zeros(16, 16)
    dot_16[(1,)](ones, ones, out)
    return differs(out, torch.full((16, 16), 16.0))


def bf16_reductions() -> str:
    x = torch.arange(1.0, 17.0).reshape(4, 4).bfloat16()
    sums, products = torch.zeros(4), torch.zeros(4)
    reduce_rows[(1,)](x, sums, products)
    rounded = (x[:, 0] * x[:, 1]) * (x[:, 2] * x[:, 3])
    return differs(sums, x.float().sum(1)) or differs(products, rounded)


def erf() -> str:
    x, out = torch.linspace(-3, 3, 8), torch.zeros(8)
    error_function[(1,)](x, out, SIZE=8)
    return differs(out, torch.tensor([math.erf(each) for each in x.tolist()]))


def bf16_atomics() -> str:
    out = torch.zeros(1, dtype=torch.bfloat16)
    add_atomically[(1,)](torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16), out)
    return differs(out, torch.tensor([10.0]))


def bf16_descriptors() -> str:
    x = torch.arange(32.0).reshape(4, 8).bfloat16()
    out = torch.zeros_like(x)
    load_block[(1,)](x, out)
    return differs(out, x + 1.0)


PROBES = (
    Probe("loop bounds", "a loop over a runtime integer", loop_bound),
    Probe("bf16 arithmetic", "bfloat16 +, *, <, unary minus and constants", bf16_arithmetic),
    Probe("bf16 rounding", "float32 to bfloat16, to nearest even", bf16_rounding),
    Probe("fp8 rounding", "float32 to fp8, to nearest even, saturating", fp8_rounding),
    Probe("bf16 dot", "tl.dot of bfloat16", bf16_dot),
    Probe("bf16 reductions", "tl.sum and tl.reduce of bfloat16", bf16_reductions),
    Probe("erf", "tl.erf", erf),
    Probe("bf16 atomics", "tl.atomic_add on bfloat16", bf16_atomics),
    Probe("descriptors", "bfloat16 through tl.make_tensor_descriptor", bf16_descriptors),
)
