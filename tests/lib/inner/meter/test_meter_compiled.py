"""False hints and undefined integer arithmetic are faults: a compiled kernel would not do what the interpreter does."""

import pytest
import torch
import triton
import triton.language as tl
from threeloops.inner.interpreter import enable_without_gpu
from threeloops.inner.meter import meter

pytestmark = pytest.mark.skipif(not enable_without_gpu(), reason="kernels are compiled in this process")


@triton.jit
def hinted(x, out, n, HINT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if HINT == "the first of neighbours":
        at = tl.multiple_of(at, BLOCK)
    elif HINT == "wrapped around at the end":
        at = tl.max_contiguous(tl.multiple_of(at % n, BLOCK), BLOCK)
    elif HINT == "replaced by 0 at the end":
        rows = at + n - 24
        tl.max_contiguous(tl.multiple_of(tl.where(rows + 8 < n, rows + 8, 0), 16), 16)
    elif HINT == "wrapped around inside a tile":
        tl.max_contiguous((at + 5) % 16, 16)
    elif HINT == "wrapped around several times":
        tl.max_contiguous(tl.multiple_of(at % BLOCK % 5, BLOCK), BLOCK)
    elif HINT == "one element":
        tl.max_contiguous(n, 1)
        tl.max_contiguous(at[:, None], [1, 1])
    elif HINT == "pointers":
        x = tl.max_contiguous(tl.multiple_of(x + at, 16), BLOCK) - at
    elif HINT == "rows of a tile":
        tl.max_contiguous(tl.multiple_of(at[:, None] * n + at[None, :], [1, 16]), [1, 16])
    elif HINT == "equal in fours":
        tl.max_constancy(at // 4, 4)
    elif HINT == "a loop's index":
        for first in range(0, n, BLOCK):
            tl.multiple_of(first, BLOCK)
    elif HINT == "a shuffled tile is contiguous":
        at = tl.max_contiguous(at * 7 % BLOCK, 4)
    elif HINT == "a shuffled tile begins at multiples":
        at = tl.multiple_of(at * 7 % BLOCK, 4)
    elif HINT == "two breaks":
        tl.max_contiguous(at + at // 6, BLOCK)
    elif HINT == "pointers one element late":
        tl.multiple_of(x + 1 + at, 16)
    elif HINT == "pointers with gaps":
        tl.max_contiguous(x + 2 * at, BLOCK)
    elif HINT == "columns of a tile":
        tl.max_contiguous(at[:, None] * n + at[None, :], [16, 1])
    elif HINT == "neighbours are equal":
        tl.max_constancy(at, 2)
    elif HINT == "a number":
        tl.multiple_of(n + 1, 16)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def faults(hint, programs):
    with meter() as traffic:
        hinted[(programs,)](torch.ones(64), torch.empty(64), 64, HINT=hint, BLOCK=16)
    return [finding for finding in traffic.findings if finding.kind == "false-hint"]


@pytest.mark.parametrize(
    "hint",
    [
        "the first of neighbours", "wrapped around at the end", "replaced by 0 at the end",
        "wrapped around inside a tile", "wrapped around several times", "pointers", "rows of a tile", "equal in fours",
        "a loop's index", "one element",
    ],
)  # fmt: skip
def test_a_true_hint_is_no_fault(hint):
    assert faults(hint, 4) == []


@pytest.mark.parametrize(
    ("hint", "says"),
    [
        ("a shuffled tile is contiguous", "tl.max_contiguous with 4 is not true of a tile; 12 elements"),
        ("a shuffled tile begins at multiples", "tl.multiple_of with 4 is not true of a tile; 12 elements"),
        ("two breaks", "tl.max_contiguous with 16 is not true of a tile; 2 elements"),
        ("pointers one element late", "tl.multiple_of with 16 is not true of a tile; 1 element"),
        ("pointers with gaps", "tl.max_contiguous with 16 is not true of a tile; 15 elements"),
        ("columns of a tile", "tl.max_contiguous with 16, 1 is not true of a tile; 240 elements"),
        ("neighbours are equal", "tl.max_constancy with 2 is not true of a tile; 8 elements"),
        ("a number", "tl.multiple_of with 16 is not true of a tile; 1 element"),
    ],
)
def test_a_false_hint_is_one_with_its_line(hint, says):
    (finding,) = faults(hint, 1)
    assert says in finding.message and "the compiler relies on it: leave it out, or correct it" in finding.message
    assert finding.launch == "hinted" and finding.line > hinted.fn.__code__.co_firstlineno


@triton.jit
def computed(out, n, KIND: tl.constexpr):
    lane, low, large, many = tl.arange(0, 16), -2147483648, 1e30, tl.arange(0, 16).to(tl.float32) * 1e10
    if KIND == "a division by a number":
        tl.store(out + lane, lane // n + lane % n + low // n)
    elif KIND == "a shift by less than all bits":
        tl.store(out + lane, (lane << 31) + (lane >> (n - 4)))
    elif KIND == "the lowest number that fits":
        tl.store(out + lane, lane + (low + 0.0 * n).to(tl.int32))
    elif KIND == "some numbers that do not fit":
        tl.store(out + lane, many.to(tl.int32))
    elif KIND == "a fully masked tile":
        tl.store(out + lane, lane + tl.where(lane < 0, 1.0, float("-inf")).to(tl.int32), mask=lane < 0)
    elif KIND == "a division by zero":
        tl.store(out + lane, lane // (n - n))
    elif KIND == "a remainder by zero in a lane":
        tl.store(out + lane, lane % lane)
    elif KIND == "a quotient that does not fit":
        tl.store(out + lane, lane + low // (n - n - 1))
    elif KIND == "a shift by all bits":
        tl.store(out + lane, lane >> (n - 3))
    elif KIND == "a shift by a negative number":
        tl.store(out + lane, lane << (n - n - 1))
    elif KIND == "no number that fits":
        tl.store(out + lane, lane + large.to(tl.int32))
    elif KIND == "a number that is none":
        tl.store(out + lane, lane + ((large - large) / (large - large)).to(tl.int32))


def undefined(kind):
    with meter() as traffic:
        computed[(1,)](torch.empty(16, dtype=torch.int32), 35, KIND=kind)
    return [finding.message for finding in traffic.findings if finding.kind == "undefined-arithmetic"]


@pytest.mark.parametrize(
    "kind",
    [
        "a division by a number", "a shift by less than all bits", "the lowest number that fits",
    ],
)  # fmt: skip
def test_arithmetic_that_a_gpu_does_as_the_interpreter_is_no_fault(kind):
    assert undefined(kind) == []


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("a division by zero", "an integer is divided by zero; 1"),
        ("a remainder by zero in a lane", "an integer is divided by zero; 1"),
        ("a quotient that does not fit", "the lowest integer is divided by −1; 1 lane"),
        ("a shift by all bits", "an integer of 32 bits is shifted by fewer than 0 or at least 32; 1"),
        ("a shift by a negative number", "an integer of 32 bits is shifted by fewer than 0 or at least 32; 1"),
        ("some numbers that do not fit", "a number does not fit into the int32 that it becomes; "),
        ("a fully masked tile", "a number does not fit into the int32 that it becomes; 16 lanes"),
        ("no number that fits", "a number does not fit into the int32 that it becomes; 1 lane"),
        ("a number that is none", "a number does not fit into the int32 that it becomes; 1 lane"),
    ],
)
def test_undefined_arithmetic_is_a_fault(kind, says):
    (message,) = undefined(kind)
    assert says in message and "the compiler assumes that this never happens" in message


@triton.jit
def quotients(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    here = at < n
    numbers, divisors = tl.load(x + at, mask=here), tl.load(y + at, mask=here)
    tl.store(out + at, numbers // divisors + (numbers % 4 >> divisors), mask=here)


def test_undefined_lanes_that_are_not_stored_may_be_divided_and_shifted():
    x, y, out = torch.arange(10), torch.full((10,), 2), torch.empty(10, dtype=torch.int64)
    with meter(undefined_lanes=True) as traffic:
        quotients[(1,)](x, y, out, 10, BLOCK=16)
    assert traffic.findings == [] and out.tolist() == [k // 2 + (k % 4 >> 2) for k in range(10)]


@triton.jit
def counted_in_bins(x, out, n, MASKED: tl.constexpr):
    at = tl.arange(0, 16)
    numbers = tl.load(x + at, mask=at < n, other=-1)
    counts = tl.histogram(numbers, 4, mask=at < n) if MASKED else tl.histogram(numbers, 4)
    tl.store(out + tl.arange(0, 4), counts)


def test_a_number_without_a_bin_is_a_fault_unless_it_is_masked():
    x, out = torch.tensor([0, 3] * 5, dtype=torch.int32), torch.empty(4, dtype=torch.int32)
    with meter() as traffic:
        counted_in_bins[(1,)](x, out, 10, MASKED=True)
    assert traffic.findings == [] and out.tolist() == [5, 0, 0, 5]
    with meter() as traffic:
        counted_in_bins[(1,)](x, out, 10, MASKED=False)
    (finding,) = traffic.findings
    assert finding.kind == "undefined-arithmetic"
    assert "tl.histogram of 4 bins counts a number outside 0 … 3, whose bin is unspecified; 6 lanes" in finding.message
    assert "leave it out with the mask" in finding.message
