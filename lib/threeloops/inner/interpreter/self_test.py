"""Check that the interpreter is right on this machine: tiny kernels with known answers, which `threeloops doctor`
tries.

Import this module only after this process has chosen between interpreting and compiling, because Triton applies that
choice when a kernel is decorated.
"""

import math

import torch
import triton
import triton.language as tl

__all__ = [
    "add_and_compare", "add_atomically", "convert", "count_up", "dot_16", "error_function", "load_block", "loop_bound",
    "product", "reduce_rows", "wrong_answers",
]  # fmt: skip


def wrong_answers() -> dict[str, str]:
    """Try the current interpreter, in less than a second. Returns each probe that it gets wrong, and the wrong
    result."""
    wrong = {}
    for what, probe in _PROBES.items():
        try:
            result = probe()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        if result:
            wrong[what] = result
    return wrong


@triton.jit
def count_up(out, n):
    for i in range(n):
        tl.store(out + i, i)


@triton.jit
def add_and_compare(x, y, out, constant: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    left = tl.load(x + at)
    right = tl.load(y + at)
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


def _differs(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """Describe the difference in words, or return "" if there is none."""
    actual = actual.double()
    expected = expected.double()
    if torch.equal(actual, expected):
        return ""
    at = int((actual != expected).ravel().nonzero()[0])
    return f"{actual.ravel()[at]:g} where {expected.ravel()[at]:g} is right"


def loop_bound() -> str:
    out = torch.zeros(4)
    count_up[(1,)](out, 4)
    return _differs(out, torch.arange(4.0))


def _bf16_arithmetic() -> str:
    x = torch.tensor([1.0, -2.5, 3.0, 1.0078125], dtype=torch.bfloat16)
    y = torch.tensor([2.0, -4.0, 3.5, 7.0], dtype=torch.bfloat16)
    out = torch.zeros_like(x)
    add_and_compare[(1,)](x, y, out, 0.5, SIZE=4)
    return _differs(out, torch.where(x < y, x * y + 0.5, -x))


def _bf16_rounding() -> str:
    x = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38])
    out = torch.zeros(4, dtype=torch.bfloat16)
    convert[(1,)](x, out, SIZE=4)
    return _differs(out, x.bfloat16())


def _fp8_rounding() -> str:
    x = torch.tensor([17.0, 19.0, 448.0, 1e6])
    out = torch.zeros(4, dtype=torch.float8_e4m3fn)
    convert[(1,)](x, out, SIZE=4)
    return _differs(out.float(), torch.tensor([16.0, 20.0, 448.0, 448.0]))


def _bf16_dot() -> str:
    ones = torch.ones(16, 16, dtype=torch.bfloat16)
    out = torch.zeros(16, 16)
    dot_16[(1,)](ones, ones, out)
    return _differs(out, torch.full((16, 16), 16.0))


def _bf16_reductions() -> str:
    x = torch.arange(1.0, 17.0).reshape(4, 4).bfloat16()
    sums = torch.zeros(4)
    products = torch.zeros(4)
    reduce_rows[(1,)](x, sums, products)
    rounded = (x[:, 0] * x[:, 1]) * (x[:, 2] * x[:, 3])
    return _differs(sums, x.float().sum(1)) or _differs(products, rounded)


def _erf() -> str:
    x = torch.linspace(-3, 3, 8)
    out = torch.zeros(8)
    error_function[(1,)](x, out, SIZE=8)
    return _differs(out, torch.tensor([math.erf(value) for value in x.tolist()]))


def _bf16_atomics() -> str:
    out = torch.zeros(1, dtype=torch.bfloat16)
    add_atomically[(1,)](torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16), out)
    return _differs(out, torch.tensor([10.0]))


def _bf16_descriptors() -> str:
    x = torch.arange(32.0).reshape(4, 8).bfloat16()
    out = torch.zeros_like(x)
    load_block[(1,)](x, out)
    return _differs(out, x + 1.0)


_PROBES = {
    "a loop over a runtime integer": loop_bound,
    "bfloat16 +, *, <, unary minus and constants": _bf16_arithmetic,
    "float32 to bfloat16, to nearest even": _bf16_rounding,
    "float32 to fp8, to nearest even, saturating": _fp8_rounding,
    "tl.dot of bfloat16": _bf16_dot,
    "tl.sum and tl.reduce of bfloat16": _bf16_reductions,
    "tl.erf": _erf,
    "tl.atomic_add on bfloat16": _bf16_atomics,
    "bfloat16 through tl.make_tensor_descriptor": _bf16_descriptors,
}
"""The probes: a name, and the function that tries it and describes what is wrong."""
