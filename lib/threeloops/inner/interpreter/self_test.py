"""Whether the interpreter is right on this machine: tiny kernels with known answers, and what to install.

Import this only after interpreting is decided, because Triton decides when a kernel is decorated.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy
import torch
import triton
import triton.language as tl

__all__ = [
    "Check", "Preflight", "add_and_compare", "add_atomically", "bf16_dot", "convert", "count_up", "dot_16",
    "error_function", "load_block", "loop_bound", "product", "reduce_rows", "run",
]  # fmt: skip

_KNOWN_TRITON = ("3.6", "3.7", "3.8")
"""Release series whose interpreter was read line by line, and for which every repair is tested."""

_INSTALL = "pip install -r requirements.txt (triton 3.7.1), or triton 3.6 with numpy<2.4"


@dataclass(frozen=True)
class Check:
    """One thing tried: whether it is right, and in `what`, what it was and any wrong result."""

    name: str
    ok: bool
    what: str


@dataclass(frozen=True)
class Preflight:
    """Checks of the interpreter with these versions. `interpreted` is False if kernels are compiled for a GPU, where
    there is nothing to check."""

    triton: str
    numpy: str
    interpreted: bool
    checks: tuple[Check, ...]

    @property
    def known(self) -> bool:
        """Whether the repairs were written for this release of Triton."""
        return self.triton.startswith(tuple(f"{series}." for series in _KNOWN_TRITON))

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def report(self) -> str:
        """Lines to print."""
        versions = f"triton {self.triton}, numpy {self.numpy}"
        if not self.interpreted:
            return f"interpreter   off ({versions}): kernels are compiled for this GPU"
        lines = [f"interpreter   {'ok' if self.ok else 'wrong'} ({versions})"]
        if not self.known:
            lines.append(
                f"  triton {self.triton} is not one of {', '.join(_KNOWN_TRITON)}, which the repairs were written for: "
                "only what is listed here was tried"
            )
        for check in self.checks:
            lines.append(f"  {'ok   ' if check.ok else 'wrong'} {check.name}: {check.what}")
            if not check.ok:
                lines.append(f"        {_INSTALL}")
        return "\n".join(lines)


def run(failed_repairs: Mapping[str, str], *, interpreted: bool) -> Preflight:
    """Try the interpreter as it stands. `failed_repairs`: name of a repair → why it could not be installed."""
    checks = [Check(f"repair of {name}", False, why) for name, why in failed_repairs.items()]
    if interpreted:
        checks += [_tried(*probe) for probe in _PROBES]
    return Preflight(triton.__version__, numpy.__version__, interpreted, tuple(checks))


def _tried(name: str, what: str, probe: Callable[[], str]) -> Check:
    try:
        wrong = probe()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    return Check(name, not wrong, f"{what}: {wrong}" if wrong else what)


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


def _differs(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """What is wrong, in words; empty if nothing is."""
    actual, expected = actual.double(), expected.double()
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


def bf16_dot() -> str:
    ones, out = torch.ones(16, 16, dtype=torch.bfloat16), torch.zeros(16, 16)
    dot_16[(1,)](ones, ones, out)
    return _differs(out, torch.full((16, 16), 16.0))


def _bf16_reductions() -> str:
    x = torch.arange(1.0, 17.0).reshape(4, 4).bfloat16()
    sums, products = torch.zeros(4), torch.zeros(4)
    reduce_rows[(1,)](x, sums, products)
    rounded = (x[:, 0] * x[:, 1]) * (x[:, 2] * x[:, 3])
    return _differs(sums, x.float().sum(1)) or _differs(products, rounded)


def _erf() -> str:
    x, out = torch.linspace(-3, 3, 8), torch.zeros(8)
    error_function[(1,)](x, out, SIZE=8)
    return _differs(out, torch.tensor([math.erf(each) for each in x.tolist()]))


def _bf16_atomics() -> str:
    out = torch.zeros(1, dtype=torch.bfloat16)
    add_atomically[(1,)](torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16), out)
    return _differs(out, torch.tensor([10.0]))


def _bf16_descriptors() -> str:
    x = torch.arange(32.0).reshape(4, 8).bfloat16()
    out = torch.zeros_like(x)
    load_block[(1,)](x, out)
    return _differs(out, x + 1.0)


_PROBES = (
    ("loop bounds", "a loop over a runtime integer", loop_bound),
    ("bf16 arithmetic", "bfloat16 +, *, <, unary minus and constants", _bf16_arithmetic),
    ("bf16 rounding", "float32 to bfloat16, to nearest even", _bf16_rounding),
    ("fp8 rounding", "float32 to fp8, to nearest even, saturating", _fp8_rounding),
    ("bf16 dot", "tl.dot of bfloat16", bf16_dot),
    ("bf16 reductions", "tl.sum and tl.reduce of bfloat16", _bf16_reductions),
    ("erf", "tl.erf", _erf),
    ("bf16 atomics", "tl.atomic_add on bfloat16", _bf16_atomics),
    ("descriptors", "bfloat16 through tl.make_tensor_descriptor", _bf16_descriptors),
)
"""Name, what is tried, and the function that tries it."""
