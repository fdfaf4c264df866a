"""Statements that Triton does not compile are refused in the interpreter too, where they are executed."""

import pytest
import torch
import triton
import triton.language as tl
from threeloops.inner.codegen import inspect
from threeloops.inner.interpreter import enable_without_gpu

pytestmark = pytest.mark.skipif(not enable_without_gpu(), reason="kernels are compiled in this process")


@triton.jit
def chosen(n, KIND: tl.constexpr):
    if KIND == "tensor":
        if n > 2:
            return n
        else:
            return n + 1
    if KIND == "pair":
        return 3, 4
    elif KIND == "three":
        return 3
    else:
        return 4


@triton.jit
def written(out, n, KIND: tl.constexpr):
    at = tl.arange(0, 16)
    if KIND == "an early return":
        tl.store(out + at, 7.0)
        if n > 2:
            return
        tl.store(out + at, 8.0)
    elif KIND == "what a constant leaves out":
        for i in range(n):
            if KIND == "never":
                break
            tl.store(out + i, 7.0)
    elif KIND == "a condition of one element":
        if tl.sum(at) > n:
            tl.store(out, 7.0)
    elif KIND == "an assertion about a tile":
        assert at < 16, "too large"
        tl.store(out, 7.0)
    elif KIND == "a comprehension of a tuple":
        numbers = [number * 2 for number in (n, n + 1)]
        tl.store(out, numbers[0] - 1)
    elif KIND == "numbers returned under constants":
        three, four = chosen(n, "pair")
        tl.store(out + at, tl.zeros((16,), tl.int8) + (chosen(n, "three") << 8 >> 8) + chosen(n, "") + three - 3)
    elif KIND == "a tuple that a loop carries":
        pair = (0, 7)
        for _ in range(2 * n):
            pair = (pair[1], pair[0])
        tl.store(out + at, pair[1])
    elif KIND == "a comprehension in a comprehension":
        numbers = [[number + other for number in (1, 2)] for other in (n, 3)]
        tl.store(out + at, numbers[0][1] + 1)
    elif KIND == "an absent value":
        bias = None
        for _ in range(n):
            if bias is None:
                tl.store(out + at, 7.0)
    elif KIND == "a search by halves":
        low, high = 0, 2 * n
        while low < high:
            middle = (low + high) // 2
            if middle * middle < 40:
                low = middle + 1
            else:
                high = middle
        tl.store(out + at, low)
    elif KIND == "an index that stays after an unrolled loop":
        i = 9
        for i in tl.static_range(8):
            tl.store(out + at, i - 1)
        tl.store(out + at, i)
    elif KIND == "break":
        for i in range(n):
            if i == 1:
                break
    elif KIND == "continue":
        for i in range(n):
            if i == 1:
                continue
            tl.store(out + i, 7.0)
    elif KIND == "a return in a loop":
        while n > 0:
            n -= 1
            if n == 2:
                return
    elif KIND == "a chain of comparisons":
        if 0 < n < 9:
            tl.store(out, 7.0)
    elif KIND == "an assignment in an expression":
        tl.store(out, (total := n + 1) + total)
    elif KIND == "a lambda":
        twice = lambda number: number * 2  # noqa: E731
        tl.store(out, twice(n))
    elif KIND == "a comprehension of a range":
        numbers = [number for number in range(3)]  # noqa: C416
        tl.store(out, numbers[1])
    elif KIND == "a tile as a condition":
        if at > 3:
            tl.store(out, 7.0)
    elif KIND == "a tile as the condition of a loop":
        while at < 0:
            at += 1


def run(kind):
    out = torch.zeros(16)
    written[(1,)](out, 4, KIND=kind)
    return out[0].item()


@pytest.mark.parametrize(
    "kind",
    [
        "an early return", "what a constant leaves out", "a condition of one element", "an assertion about a tile",
        "a comprehension of a tuple", "numbers returned under constants", "a tuple that a loop carries",
        "a comprehension in a comprehension", "an absent value", "a search by halves",
        "an index that stays after an unrolled loop",
    ],
)  # fmt: skip
def test_what_compiles_runs(kind):
    inspect(lambda: run(kind), "sm_90")
    assert run(kind) == 7


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("break", r"break at line \d+ of written: Triton compiles none; make it the condition of a `while` loop"),
        ("continue", "continue at line .*: Triton compiles none; put the rest of the step under an `if`"),
        ("a return in a loop", "a return within a loop at line .*; let the loop end, and return after it"),
        ("a chain of comparisons", "a chain of comparisons at line .*; join two comparisons with `and` or &"),
        (
            "an assignment in an expression",
            "an assignment within an expression at .*; assign in a statement of its own",
        ),
        ("a lambda", "a lambda at line .*; write a function with @triton.jit"),
        ("a comprehension of a range", "a comprehension of a range at line .*; write a loop with tl.static_range"),
        (
            "a tile as a condition",
            r"a tile of shape \[16\] is a condition at line .*: a compiled kernel branches on one",
        ),
        ("a tile as the condition of a loop", r"a tile of shape \[16\] is a condition at line .*Reduce the tile"),
    ],
)
def test_what_does_not_compile_is_refused(kind, says):
    since = {"an assignment in an expression": (3, 8), "a chain of comparisons": (3, 9)}.get(kind)
    if since and tuple(map(int, triton.__version__.split(".")[:2])) >= since:
        pytest.skip("this Triton compiles it")
    with pytest.raises(Exception, match="does not compile for sm_90"):
        inspect(lambda: run(kind), "sm_90")
    with pytest.raises(Exception, match=says):
        run(kind)


@triton.jit
def asserted(out):
    assert tl.arange(0, 16) < 15, "too large"
    tl.store(out, 7.0)


def test_an_assertion_about_a_tile_is_one_about_every_element():
    with pytest.raises(Exception, match="too large"):
        asserted[(1,)](torch.zeros(1))
