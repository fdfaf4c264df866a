"""Loops and branches carry what compiled ones carry: variables of one type, and nothing that a step or side adds."""

import pytest
import torch
import triton
import triton.language as tl
from threeloops.inner.codegen import inspect
from threeloops.inner.interpreter import enable_without_gpu

pytestmark = pytest.mark.skipif(not enable_without_gpu(), reason="kernels are compiled in this process")


@triton.jit
def carried(x, out, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if KIND == "a tile and a pointer":
        total, place = tl.zeros((BLOCK,), tl.float32), x + at
        for _ in range(n):
            total += tl.load(place)
            place += BLOCK
        tl.store(out + at, total)
    elif KIND == "while":
        i, total = 0, 0.0
        while i < n:
            total = tl.maximum(total, tl.sum(tl.load(x + i * BLOCK + at)))
            i += 1
        tl.store(out + at, total)
    elif KIND == "numbers that change places":
        old, new = 0.0, 16.0
        for _ in range(n):
            old, new = new, old + new
        tl.store(out + at, old - 32)
    elif KIND == "a truth":
        found = False
        for i in range(n):
            found = found or i == 2
        tl.store(out + at, found * 16.0)
    elif KIND == "a name of an inner loop, reused after it":
        total = tl.zeros((BLOCK,), tl.float32)
        for i in range(n):
            for j in range(2):
                part = tl.load(x + i * BLOCK + at) * j
                total += part
            part = i * 0
            total += part
        tl.store(out + at, total * 4)
    elif KIND == "an unrolled loop":
        total = 0
        for i in tl.static_range(4):
            total = total + tl.load(x + i * BLOCK + at)
            last = total
        tl.store(out + at, last * 4)
    elif KIND == "a number becomes a tile":
        total = 0.0
        for i in range(n):
            total += tl.load(x + i * BLOCK + at)
        tl.store(out + at, total)
    elif KIND == "an integer becomes a float":
        total = 0
        for i in tl.range(n):
            total += tl.sum(tl.load(x + i * BLOCK + at))
        tl.store(out, total)
    elif KIND == "float16 becomes float32":
        total = tl.zeros((BLOCK,), tl.float16)
        for i in range(n):
            total = total + tl.load(x + i * BLOCK + at)
        tl.store(out + at, total)
    elif KIND == "int32 becomes int64":
        i, total = 0, 0
        while i < n:
            total = total + i.to(tl.int64)
            i += 1
        tl.store(out, total)
    elif KIND == "a pointer becomes many":
        for _ in range(n):
            x = x + at
        tl.store(out + at, tl.load(x))
    elif KIND == "a constant is assigned":
        for _ in range(n):
            BLOCK = BLOCK + 1
        tl.store(out, BLOCK)
    elif KIND == "a name of a step is read after it":
        for i in range(n):
            part = tl.load(x + i * BLOCK + at)
        tl.store(out + at, part)


def run(kind):
    out = torch.zeros(16)
    carried[(1,)](torch.ones(64), out, 4, KIND=kind, BLOCK=16)
    return out


@pytest.mark.parametrize(
    "kind",
    [
        "a tile and a pointer", "while", "numbers that change places", "a truth",
        "a name of an inner loop, reused after it", "an unrolled loop",
    ],
)  # fmt: skip
def test_a_loop_that_compiles_runs(kind):
    inspect(lambda: run(kind), "sm_90")
    assert run(kind).tolist() == [{"a tile and a pointer": 4.0}.get(kind, 16.0)] * 16


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "a number becomes a tile",
            r"total is fp32 before the loop at line \d+ of carried and fp32 of shape \[16\] a",
        ),
        (
            "an integer becomes a float",
            "total is int32 before the loop .* and fp32 after a step: a compiled loop",
        ),
        ("float16 becomes float32", r"total is fp16 of shape \[16\] before .* and fp32 of shape \[16\] after a step"),
        ("int32 becomes int64", "total is int32 before the loop .* and int64 after a step"),
        ("a pointer becomes many", r"x is pointer<fp32> before .* and pointer<fp32> of shape \[16\] after a step"),
        ("a constant is assigned", "BLOCK is a constant .* before the loop .* and int32 after a step"),
        ("a name of a step is read after it", "cannot access local variable 'part'"),
    ],
)
def test_a_loop_that_does_not_compile_is_refused(kind, says):
    with pytest.raises(Exception, match="does not compile for sm_90"):
        inspect(lambda: run(kind), "sm_90")
    with pytest.raises(Exception, match=says):
        run(kind)


@triton.jit
def branched(out, n, KIND: tl.constexpr):
    value = 1.0
    if KIND == "a branch that assigns":
        if n > 2:
            value = 4.0
        elif n > 1:
            value = 2.0
        tl.store(out, value)
    elif KIND == "both sides add":
        if n > 2:
            added = 4.0
        else:
            added = 2.0
        tl.store(out, added)
    elif KIND == "a branch on a constant":
        if KIND != "":
            value, added = 4, 4
        tl.store(out, value * added / 4)
    elif KIND == "a branch that returns":
        tl.store(out, 4.0)
        if n > 2:
            value = 5.0
            return
        tl.store(out, value)
    elif KIND == "an integer becomes a float":
        whole = 1
        if n > 2:
            whole = 1.5
        tl.store(out, whole)
    elif KIND == "a number becomes a tile":
        if n < 2:
            n = 0
        elif n > 2:
            value = tl.arange(0, 2) * 1.0
        tl.store(out + tl.arange(0, 2), value)
    elif KIND == "one side adds":
        if n > 2:
            added = 4.0
        tl.store(out, added)


def run_branch(kind):
    out = torch.zeros(2)
    branched[(1,)](out, 4, KIND=kind)
    return out[0].item()


@pytest.mark.parametrize(
    "kind", ["a branch that assigns", "both sides add", "a branch on a constant", "a branch that returns"]
)
def test_a_branch_that_compiles_runs(kind):
    inspect(lambda: run_branch(kind), "sm_90")
    assert run_branch(kind) == 4


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("an integer becomes a float", r"whole is int32 before the branch at line \d+ of branched and fp32 after it"),
        ("a number becomes a tile", r"value is fp32 before the branch at line .* and fp32 of shape \[2\] after it"),
        ("one side adds", "cannot access local variable 'added'"),
    ],
)
def test_a_branch_that_does_not_compile_is_refused(kind, says):
    with pytest.raises(Exception, match="does not compile for sm_90"):
        inspect(lambda: run_branch(kind), "sm_90")
    with pytest.raises(Exception, match=says):
        run_branch(kind)
