"""How large the tiles of a program are, and how much it holds at one time."""

import pytest
import torch
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.meter import meter

pytestmark = pytest.mark.skipif(not interpreter.interpreted(), reason="kernels are compiled in this process")


@triton.jit
def sum_kernel(x, out, columns, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total, kept = 0.0, ()
    for first in range(0, columns, BLOCK):
        values = tl.load(x + tl.program_id(0) * columns + first + at)
        total += tl.sum(values, axis=0)
        if KEEP:
            kept += (values,)
    tl.store(out + tl.program_id(0), total)


@triton.jit
def joined_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    both = tl.join(tl.load(x + at), tl.load(x + BLOCK + at))
    tl.store(out, tl.sum(tl.sum(both, axis=1), axis=0))


@triton.jit
def outer_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at[:, None] * BLOCK + at[None, :], tl.load(x + at)[:, None] * tl.load(x + at)[None, :])


@triton.jit
def number_kernel(x, out, columns, BLOCK: tl.constexpr):
    kept = ()
    for at in range(columns):
        kept += (int(tl.load(x + at)),)
    total = 0
    for at in range(columns):
        total += kept[at]
    tl.store(out, total)


def traffic(kernel, columns, rows=1, **constants):
    x, out = torch.ones(rows, columns), torch.empty(max(rows, 16 * 16))
    with meter() as metered:
        kernel[(rows,)](x, out, *([columns] if kernel in (sum_kernel, number_kernel) else []), BLOCK=16, **constants)
    return metered


def test_a_loop_over_blocks_holds_the_same_for_rows_of_any_length():
    short, long = (traffic(sum_kernel, columns, KEEP=False).total for columns in (64, 1024))
    assert (short.largest_tile, long.largest_tile) == (16, 16)
    assert 16 < short.most_held == long.most_held <= 16 * 8


def test_a_program_that_keeps_its_blocks_holds_the_row():
    kept = traffic(sum_kernel, 1024, KEEP=True).total
    assert kept.largest_tile == 16
    assert kept.most_held >= 1024


def test_a_program_that_keeps_its_row_as_numbers_of_pythons_holds_it_too():
    kept = traffic(number_kernel, 256).total
    assert kept.largest_tile == 1
    assert kept.most_held >= 256


def test_what_one_program_holds_does_not_count_for_the_next():
    assert (
        traffic(sum_kernel, 256, rows=7, KEEP=True).total.most_held
        == traffic(sum_kernel, 256, KEEP=True).total.most_held
    )


def test_a_tile_that_is_computed_counts_like_one_that_is_loaded():
    assert traffic(joined_kernel, 32).total.largest_tile == 32
    assert traffic(outer_kernel, 16).total.largest_tile == 256


def test_several_launches_have_the_largest_of_each():
    with meter() as metered:
        sum_kernel[(1,)](torch.ones(64), torch.empty(1), 64, KEEP=False, BLOCK=32)
        sum_kernel[(1,)](torch.ones(64), torch.empty(1), 64, KEEP=False, BLOCK=16)
    first, second = metered.launches
    assert (first.largest_tile, second.largest_tile) == (32, 16)
    assert (metered.total.largest_tile, metered.total.most_held) == (32, max(first.most_held, second.most_held))


def test_outside_of_a_launch_handles_are_as_triton_made_them():
    from triton.runtime.interpreter import TensorHandle

    before = TensorHandle.__post_init__
    traffic(sum_kernel, 64, KEEP=False)
    assert TensorHandle.__post_init__ is before
    assert "__del__" not in vars(TensorHandle)
