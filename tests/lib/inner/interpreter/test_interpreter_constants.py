"""An integer argument that is 1 is a constant in the interpreter, because Triton compiles another kernel for it."""

import pytest
import torch
import triton
import triton.language as tl
from threeloops.inner.codegen import inspect
from threeloops.inner.interpreter import enable_without_gpu

pytestmark = pytest.mark.skipif(not enable_without_gpu(), reason="kernels are compiled in this process")


def of(x, out, n, KIND: tl.constexpr):
    at = tl.arange(0, 16)
    if KIND == "added to int8":
        tl.store(out + at, tl.load(x + at) + n)
    elif KIND == "shifted by 33":
        tl.store(out + at, n << 33)
    elif KIND == "a negative quotient":
        tl.store(out + at, (n - 2) // 2)
    elif KIND == "a size":
        tl.store(out + tl.arange(0, n), 7)
    elif KIND == "converted":
        tl.store(out + at, n.to(tl.int64))
    elif KIND == "changed in a loop":
        while n > 0:
            n = n - 1
        tl.store(out + at, n)


def typed(x, out, n: tl.int32, KIND: tl.constexpr):
    tl.store(out, tl.load(x) + n)


def with_default(x, out, n=1, KIND: tl.constexpr = ""):
    tl.store(out, tl.load(x) + n)


specialized = triton.jit(of)
excluded = triton.jit(of, do_not_specialize=["n"])
excluded_by_place = triton.jit(of, do_not_specialize=[2])
annotated, defaulted = triton.jit(typed), triton.jit(with_default)


def run(kernel, kind="", **n):
    x, out = torch.full((16,), 127, dtype=torch.int8), torch.zeros(16, dtype=torch.int64)
    kernel[(1,)](x, out, KIND=kind, **n)
    return out[0].item()


@pytest.mark.parametrize(
    ("kind", "constant", "tensor"),
    [
        ("added to int8", -128, 128),  # a constant takes the type of the other operand
        ("shifted by 33", 2**33, None),
        ("a negative quotient", -1, 0),
        ("a size", 7, None),
    ],
)
def test_one_is_a_constant_unless_it_is_excluded(kind, constant, tensor):
    inspect(lambda: run(specialized, kind, n=1), "sm_90")
    assert run(specialized, kind, n=1) == constant
    if tensor is not None:
        assert run(excluded, kind, n=1) == run(excluded_by_place, kind, n=1) == tensor


def test_other_numbers_and_truths_stay_tensors():
    assert run(specialized, "added to int8", n=2) == 129
    assert run(specialized, "added to int8", n=True) == -128  # as int8, since true is one bit
    with pytest.raises(Exception, match="must be of type tl.constexpr"):
        run(specialized, "a size", n=2)


def test_a_parameter_with_a_type_stays_a_tensor_and_a_default_is_an_argument():
    assert run(annotated, n=1) == 128
    assert run(defaulted) == run(defaulted, n=1) == -128


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("converted", "'int' object has no attribute 'to'"),
        ("changed in a loop", "n is a constant .an integer argument of 1 is one. before the loop"),
    ],
)
def test_what_is_refused_for_a_constant_is_refused_for_one(kind, says):
    assert run(excluded, kind, n=1) == (kind == "converted")
    with pytest.raises(Exception, match="does not compile"):
        inspect(lambda: run(specialized, kind, n=1), "sm_90")
    with pytest.raises(Exception, match=says):
        run(specialized, kind, n=1)


THREE = tl.constexpr(3)


@triton.jit
def constant_first(out):
    i = tl.arange(0, 4)
    tl.store(out + i, THREE + i)
    tl.store(out + 4 + i, THREE - i)
    tl.store(out + 8 + i, THREE * i)
    tl.store(out + 12 + i, THREE // (i + 1))
    tl.store(out + 16 + i, THREE % (i + 1))
    tl.store(out + 20 + i, (THREE & i) + (THREE | i) + (THREE ^ i) + (THREE << i) + (THREE >> i))
    tl.store(out + 24 + i, tl.where(THREE < i + 1, 1, 0) + tl.where(THREE == i, 2, 0))  # noqa: SIM300
    tl.store(out + 28 + i, (8 * (THREE / (i + 1).to(tl.float32))).to(tl.int32))


def test_a_constant_before_a_tensor_is_the_tensors_operation():
    """`THREE * i` is `i * THREE`, as in a compiled kernel, where the constant's own operation never sees a tensor."""
    out = torch.zeros(32, dtype=torch.int64)
    constant_first[(1,)](out)
    i = torch.arange(4)
    bits = (3 & i) + (3 | i) + (3 ^ i) + (3 << i) + (3 >> i)
    truths = (i > 2).long() + 2 * (i == 3)
    expected = (3 + i, 3 - i, 3 * i, 3 // (i + 1), 3 % (i + 1), bits, truths, (24 / (i + 1)).long())
    assert out.view(8, 4).tolist() == torch.stack(expected).tolist()
