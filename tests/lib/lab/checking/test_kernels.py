"""Checks that the labs with kernels share: what they accept, and which cause they name."""

import importlib.util

import pytest
import torch
from threeloops.inner import interpreter
from threeloops.lab import CheckFailed, replay
from threeloops.lab.checking import kernels

pytestmark = pytest.mark.skipif(not interpreter.enable_without_gpu(), reason="kernels are compiled in this process")

CELL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def divide_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    tl.store(out + at, values / values, mask=at < n)


def divide(x, programs=2, in_place=False):
    out = x if in_place else torch.empty_like(x)
    divide_kernel[(programs,)](x, out, x.numel(), BLOCK=16)
    return out


@triton.jit
def add_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(out + at, mask=at < n) + tl.load(x + at, mask=at < n), mask=at < n)


def add(x, allocate):
    out = torch.zeros_like(x) if allocate == "zeros" else torch.empty_like(x)
    add_kernel[(1,)](x, out, x.numel(), BLOCK=16)
    return out


@triton.jit
def multiply_kernel(x, y, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tile = at[:, None] * BLOCK + at[None, :]
    tl.store(out + tile, tl.dot(tl.load(x + tile), tl.load(y + tile)))


def multiply(x, y):
    out = torch.empty_like(x)
    multiply_kernel[(1,)](x, y, out, BLOCK=x.shape[0])
    return out


@triton.jit
def first_kernel(x, out):
    tl.store(out, tl.load(x))


def first(x, launch):
    out = torch.empty_like(x)
    if launch:
        first_kernel[(1,)](x, out)
    return out
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    path = tmp_path_factory.mktemp("cells") / "a_cell.py"
    path.write_text(CELL)
    spec = importlib.util.spec_from_file_location("a_cell", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_inputs_are_the_same_in_every_run_and_differ_by_seed():
    first, again, other = kernels.seeded(3, 4, seed=1), kernels.seeded(3, 4, seed=1), kernels.seeded(3, 4, seed=2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    half = kernels.seeded(3, 4, seed=1, dtype=torch.float16)
    assert half.dtype == torch.float16 and torch.equal(half, first.half())
    assert kernels.name_of(torch.float16) == "float16"


@pytest.mark.parametrize(
    ("got", "same"),
    [
        (torch.tensor([1.0, 2.00009]), True),
        (torch.tensor([1.0, 2.0002]), False),
        (torch.tensor([1.0, 2.0], dtype=torch.float16), True),
        (torch.tensor([1.0, float("nan")]), False),
        (torch.tensor([[1.0, 2.0]]), False),
        ([1.0, 2.0], False),
        (None, False),
    ],
)
def test_an_answer_is_like_a_slip_only_with_its_shape_and_its_values(got, same):
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert kernels.alike(got, expected) is same
    assert kernels.alike(torch.tensor([1.0, 2.0002]), expected, 1e-3)


def test_a_slip_is_named_only_for_its_own_values():
    slips = {"added": [[3.0, 4.0]], "multiplied": [[2.0, 4.0]]}
    assert kernels.slip_of(torch.tensor([[2.0, 4.0]]), slips) == "multiplied"
    assert kernels.slip_of(torch.tensor([[3.01, 4.0]]), slips, 0.1) == "added"
    for other in (torch.tensor([[3.01, 4.0]]), torch.tensor([3.0, 4.0]), torch.full((1, 2), float("nan")), None):
        assert kernels.slip_of(other, slips) == ""


def test_nan_was_computed_or_nobody_wrote_it(cell):
    ones = replay(cell.divide, torch.ones(20))
    assert kernels.unwritten(ones, ones.outputs) == ""
    short = replay(cell.divide, torch.ones(20), programs=1)
    assert "the programs wrote 64 of 80 bytes" in kernels.unwritten(short, short.outputs)
    zeros = replay(cell.divide, torch.zeros(20))
    assert kernels.unwritten(zeros, zeros.outputs).startswith("every element is written, so NaN was computed")
    assert kernels.unwritten(zeros, None) == kernels.unwritten(zeros, torch.ones(2, dtype=torch.int32)) == ""


def test_reading_what_nobody_wrote_is_refused(cell):
    x = torch.ones(10)
    kernels.require_sound(replay(cell.add, x, "zeros"))
    with pytest.raises(CheckFailed, match="reads of memory that nothing has written, 10 ones"):
        kernels.require_sound(replay(cell.add, x, "empty"), "10 ones")


def test_an_input_that_a_launch_overwrites_is_named(cell):
    x = torch.ones(20)
    kernels.require_separate(replay(cell.divide, x).require(x))
    with pytest.raises(CheckFailed, match=r"that overwrite an input, 20 ones(.|\n)*out of divide_kernel"):
        kernels.require_separate(replay(cell.divide, x, in_place=True).require(x), "20 ones")
    few = torch.ones(10)
    kernels.require_separate(replay(cell.add, few, "zeros").require(few))  # it reads and writes its own result
    with pytest.raises(RuntimeError, match="counts only for right values"):
        kernels.require_separate(replay(cell.divide, x))


def test_a_call_on_no_elements_returns_their_shape_and_touches_nothing(cell):
    nothing = torch.empty(0, 3)
    kernels.require_nothing(lambda: cell.first(nothing, launch=False), (0, 3), "the first of no rows")
    with pytest.raises(CheckFailed, match=r"shape \(0, 3\)(.|\n)*expected   an array or tensor of shape \(0, 4\)"):
        kernels.require_nothing(lambda: cell.first(nothing, launch=False), (0, 4), "the first of no rows")
    with pytest.raises(CheckFailed, match="accesses outside of tensors for the first of no rows"):
        kernels.require_nothing(lambda: cell.first(nothing, launch=True), (0, 3), "the first of no rows")


def test_a_kernel_has_to_fit_the_machine_for_which_it_is_compiled(cell):
    kernels.require_compiled(replay(cell.divide, torch.ones(20)).require(torch.ones(20)))
    x = torch.eye(256)
    with pytest.raises(CheckFailed, match="multiply_kernel, compiled for an H100, does not fit: .*shared memory"):
        kernels.require_compiled(replay(cell.multiply, x, x).require(x))
