"""Reductions and scans of the interpreter: the same results as one element at a time, in a few steps."""

import pytest
import torch
from threeloops.hardware import device
from threeloops.inner import interpreter

INTERPRETED = interpreter.enable_without_gpu()

import triton
import triton.language as tl

DEVICE = device()
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled on this machine")
BF16, FP16 = torch.bfloat16, torch.float16
NAN, INF = float("nan"), float("inf")


@triton.jit
def largest(left, right):
    return tl.maximum(left, right)


@triton.jit
def times(left, right):
    return left * right


@triton.jit
def matrices(a, b, c, d, e, f, g, h):
    """2 × 2 matrices: associative, not commutative."""
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


@triton.jit
def recurrence(decay, value, next_decay, next_value):
    """x ← decay·x + value, composed: what linear state-space models scan with."""
    return decay * next_decay, value * next_decay + next_value


@triton.jit
def nearer(value, index, other, other_index):
    """Asks for a truth value, as only scalars have one."""
    keep = value < other or (value == other and index < other_index)
    return tl.where(keep, value, other), tl.where(keep, index, other_index)


@triton.jit
def reduce_tile(
    x,
    out,
    COMBINE: tl.constexpr,
    AXIS: tl.constexpr,
    KEEP: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
    SIZE: tl.constexpr,
):
    tile = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if COMBINE is None:
        result = tl.sum(tile, AXIS, keep_dims=KEEP)
    else:
        result = tl.reduce(tile, AXIS, COMBINE, keep_dims=KEEP)
    if AXIS is None and not KEEP:
        tl.store(out, result)
    else:
        tl.store(out + tl.arange(0, SIZE), tl.reshape(result, [SIZE]))


@triton.jit
def multiply_chain(x, out, N: tl.constexpr):
    at = tl.arange(0, N) * 4
    a, b, c, d = tl.reduce(
        (tl.load(x + at), tl.load(x + at + 1), tl.load(x + at + 2), tl.load(x + at + 3)), 0, matrices
    )
    tl.store(out, a)
    tl.store(out + 1, b)
    tl.store(out + 2, c)
    tl.store(out + 3, d)


@triton.jit
def nearest(x, out, N: tl.constexpr):
    value, index = tl.reduce((tl.load(x + tl.arange(0, N)), tl.arange(0, N)), 0, nearer)
    tl.store(out, value)
    tl.store(out + 1, index)


@triton.jit
def arg_extremes(x, out, N: tl.constexpr, LEFT: tl.constexpr):
    row = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.argmax(row, 0, tie_break_left=LEFT))
    tl.store(out + 1, tl.argmin(row, 0, tie_break_left=LEFT))


@triton.jit
def extremes_and_places(x, values, places, N: tl.constexpr):
    row = tl.load(x + tl.arange(0, N))
    high, high_at = tl.max(row, 0, return_indices=True)
    low, low_at = tl.min(row, 0, return_indices=True)
    tl.store(values, high)
    tl.store(values + 1, low)
    tl.store(places, high_at)
    tl.store(places + 1, low_at)


@triton.jit
def total(x, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, N)), 0))


@triton.jit
def histogram_of(x, out, n, N: tl.constexpr, BINS: tl.constexpr):
    at = tl.arange(0, N)
    counts = tl.histogram(tl.load(x + at, mask=at < n, other=0), BINS, mask=at < n)
    tl.store(out + tl.arange(0, BINS), counts)


@triton.jit
def linear_recurrence(decay, value, out, N: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :]
    _, result = tl.associative_scan((tl.load(decay + at), tl.load(value + at)), 1, recurrence, reverse=REVERSE)
    tl.store(out + at, result)


@triton.jit
def cumulate(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def sort_row(x, out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.sort(tl.load(x + tl.arange(0, N))))


def reduced(x, combine, *, axis, keep=False):
    shape = torch.empty(x.shape, device="meta")
    size = shape.sum(dim=axis).numel() if axis is not None else 1
    out = torch.zeros(size, dtype=x.dtype, device=DEVICE)
    reduce_tile[(1,)](x.to(DEVICE), out, COMBINE=combine, AXIS=axis, KEEP=keep, N=x.shape[1], M=x.shape[0], SIZE=size)
    return out.cpu()


def whole(*shape, dtype=torch.int32, low=-50, high=50):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, BF16, FP16], ids=str)
def test_reductions_along_any_axis(dtype, axis, keep):
    x = whole(16, 8, dtype=dtype, low=-8, high=9)
    exact = x.double().sum() if axis is None else x.double().sum(axis)
    assert torch.equal(reduced(x, None, axis=axis, keep=keep).double(), exact.reshape(-1))
    exact = x.amax() if axis is None else x.amax(axis)
    assert torch.equal(reduced(x, largest, axis=axis, keep=keep), exact.reshape(-1))


def in_pairs(x, combine):
    while len(x) > 1:
        x = combine(x[0::2], x[1::2])
    return x[0]


@needs_interpreter
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_sums_of_16_bits_are_rounded_at_every_addition(dtype):
    """As `add.bf16` and `add.f16` do, neighbours first; the sum in float32, rounded at the end, is another number."""
    x = torch.rand(256, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    actual = reduced(x, None, axis=0)
    assert torch.equal(actual, in_pairs(x, torch.add))
    assert not torch.equal(actual, x.float().sum(0).to(dtype))


@needs_interpreter
def test_products_of_bf16_are_rounded_at_every_multiplication():
    x = 1 + torch.rand(32, 4, generator=torch.Generator().manual_seed(2)).to(BF16) / 8
    assert torch.equal(reduced(x, times, axis=0), in_pairs(x, torch.mul))


def test_left_stays_left():
    chain = whole(8, 2, 2, low=-2, high=3)
    out = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    multiply_chain[(1,)](chain.to(DEVICE), out, N=8)
    assert torch.equal(out.cpu().reshape(2, 2), torch.linalg.multi_dot([*chain.double()]).int())


@needs_interpreter
def test_a_combine_function_with_branches_is_called_on_scalars():
    """`or` of two tensors would be the first one: on whole tensors this function goes wrong without a word."""
    x, out = whole(16, dtype=torch.float32, low=0, high=4), torch.zeros(2)
    nearest[(1,)](x, out, N=16)
    assert out.tolist() == [x.min(), x.argmin()]


@pytest.mark.parametrize("left", [True, False])
def test_arg_extremes_name_an_extreme_the_first_if_asked(left):
    x, out = whole(128, dtype=torch.float32, low=0, high=20), torch.zeros(2, dtype=torch.int32, device=DEVICE)
    arg_extremes[(1,)](x.to(DEVICE), out, N=128, LEFT=left)
    assert (x[out[0]], x[out[1]]) == (x.max(), x.min())
    if left:
        assert out.tolist() == [x.argmax(), x.argmin()]


@needs_interpreter
@pytest.mark.parametrize(
    ("row", "values", "places"),
    [
        ([NAN, 6.0, 8.0, 1.0], [8.0, 1.0], [2, 3]),
        ([6.0, NAN, 8.0, 8.0], [8.0, 6.0], [2, 0]),
        ([-INF, NAN, NAN, NAN], [-INF, -INF], [0, 0]),
        ([NAN, NAN, NAN, NAN], [NAN, NAN], [3, 3]),
    ],
)
def test_an_extreme_and_its_place_are_those_of_a_number_if_there_is_one(row, values, places):
    """If a tile has NaN, what a GPU finds depends on which thread holds it. Newer interpreters prefer numbers too."""
    found, at = torch.zeros(2), torch.zeros(2, dtype=torch.int32)
    extremes_and_places[(1,)](torch.tensor(row), found, at, N=4)
    torch.testing.assert_close(found, torch.tensor(values), equal_nan=True, rtol=0, atol=0)
    assert at.tolist() == places


def test_a_sum_of_integers_wraps_around():
    out = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    total[(1,)](torch.full((16,), 2**30 + 1, dtype=torch.int32, device=DEVICE), out, N=16)
    assert out.item() == 16


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_a_histogram_counts_in_32_bits_whatever_it_counts(dtype):
    if dtype.itemsize < 4 and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
        pytest.skip("this Triton counts numbers of 32 bits only")
    x = torch.tensor([0] * 300 + [1] * 212).to(dtype)
    out = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    histogram_of[(1,)](x.to(DEVICE), out, 310, N=512, BINS=4)
    assert out.tolist() == [300, 10, 0, 0]


@needs_interpreter
def test_a_histogram_leaves_out_numbers_that_have_no_bin():
    out = torch.zeros(4, dtype=torch.int32)
    histogram_of[(1,)](torch.tensor([3, 4, -1, 100], dtype=torch.int32), out, 4, N=4, BINS=4)
    assert out.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_with_a_combine_function(reverse):
    decay, value = whole(2, 16, dtype=torch.float32, low=-1, high=2), whole(2, 16, dtype=torch.float32)
    out = torch.zeros(2, 16, device=DEVICE)
    linear_recurrence[(1,)](decay.to(DEVICE), value.to(DEVICE), out, N=16, REVERSE=reverse)
    state, expected = torch.zeros(2), torch.zeros(2, 16)
    for i in reversed(range(16)) if reverse else range(16):
        state = decay[:, i] * state + value[:, i]
        expected[:, i] = state
    assert torch.equal(out.cpu(), expected)


def test_cumulative_sums_and_sorting_of_bf16():
    """From Triton 3.9 on, `tl.cumsum` of bfloat16 adds in bfloat16: here the sums are exact in it."""
    x = whole(64, dtype=BF16, low=-3, high=4)
    sums, ordered = torch.zeros(64, device=DEVICE), torch.zeros(64, dtype=BF16, device=DEVICE)
    cumulate[(1,)](x.to(DEVICE), sums, N=64)
    sort_row[(1,)](x.to(DEVICE), ordered, N=64)
    assert torch.equal(sums.cpu(), x.float().cumsum(0))
    assert torch.equal(ordered.cpu(), x.sort().values)


@needs_interpreter
def test_a_reduction_of_1024_elements_takes_ten_calls(monkeypatch):
    from triton.runtime.interpreter import interpreter_builder

    calls = []
    multiply = interpreter_builder.create_fmul
    monkeypatch.setattr(interpreter_builder, "create_fmul", lambda a, b: calls.append(a.data.size) or multiply(a, b))
    reduced(torch.ones(1024, 2), times, axis=0)
    assert calls == [2 * 2**k for k in reversed(range(10))]
