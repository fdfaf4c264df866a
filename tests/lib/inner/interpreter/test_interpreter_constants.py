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
