"""Views under `meter(views="strict")`: exactly the accesses to elements that the view does not address are reported."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.meter import meter
from threeloops.inner.meter.accesses import View
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_release import BLOCK_POINTERS

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)


@triton.jit
def fill_kernel(y, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(y + FIRST + tl.arange(0, BLOCK), 1.0)


@triton.jit
def read_kernel(x, out, FIRST: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), tl.load(x + FIRST + STEP * tl.arange(0, BLOCK)))


@triton.jit
def gather_kernel(x, places, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + tl.load(places + lanes)))


def strict(launch, *arguments, **options):
    with meter(views="strict") as traffic:
        launch(*arguments, **options)
    return traffic.findings


def read(x, first=0, step=1, block=8):
    return strict(read_kernel[(1,)], x, torch.zeros(block), FIRST=first, STEP=step, BLOCK=block)


def test_a_neighbour_cut_from_the_same_buffer():
    pool = torch.zeros(64)
    first, second = pool[:10], pool[10:20]
    (finding,) = strict(fill_kernel[(1,)], first, FIRST=0, BLOCK=16)
    assert (finding.kind, finding.argument, finding.program) == ("outside-view", "y", (0, 0, 0))
    lines, start = inspect.getsourcelines(fill_kernel.fn)
    assert (finding.file, finding.line) == (__file__, start + len(lines) - 1)
    assert "store outside the view y: elements between 10 and 15 from its pointer on" in finding.message
    assert "shape (10,) with strides (1,)" in finding.message and "6 lanes in 1 program" in finding.message
    assert second.tolist() == [1.0] * 6 + [0.0] * 4, "the access is executed, as without the meter"


def test_the_storage_bounds_a_kernel_by_default():
    with meter() as traffic:
        fill_kernel[(1,)](torch.zeros(64)[:10], FIRST=0, BLOCK=16)
    assert traffic.findings == []


def test_before_the_view():
    (finding,) = read(torch.zeros(32)[8:], first=-2)
    assert "load outside the view x: elements between -2 and -1" in finding.message and "2 lanes" in finding.message


def test_past_the_storage_is_out_of_bounds_only():
    assert [finding.kind for finding in read(torch.zeros(20)[16:], first=4)] == ["out-of-bounds"]
    kinds = [finding.kind for finding in read(torch.zeros(20)[8:16], first=8)]
    assert kinds == ["out-of-bounds", "outside-view"], "four lanes each"


def test_skipped_elements_are_not_the_view_s():
    x = torch.zeros(4, 8)[:, ::2]
    assert read(x, step=2) == []
    (finding,) = read(x, step=1)
    assert "elements between 1 and 7" in finding.message and "4 lanes in 1 program" in finding.message
    assert "shape (4, 4) with strides (8, 2)" in finding.message


def test_a_column_is_not_its_row():
    x = torch.zeros(8, 8)
    assert read(x[:, 3], step=8) == [] and read(x.t(), step=8) == []
    assert "7 lanes" in read(x[:, 3])[0].message


@pytest.mark.parametrize(
    ("view", "outside"),
    [
        (torch.zeros(64).expand(2, 64), 0),
        (torch.zeros(64)[:1].expand(8), 7),
        (torch.zeros(64).as_strided((4, 3), (2, 1)), 0),
        (torch.zeros(64).as_strided((3, 2), (3, 1), 5), 2),
        (torch.zeros(64).unfold(0, 4, 2), 0),
        (torch.zeros(64)[5:5], 8),
        (torch.zeros(64)[7:8].squeeze(), 7),
        (torch.zeros(2, 4, 8).permute(2, 0, 1), 0),
    ],
    ids=["expanded", "one element expanded", "overlapping", "gaps", "unfold", "empty", "scalar", "permuted"],
)
def test_overlapping_empty_and_permuted_views(view, outside):
    assert sum(int(each.message.split("; ")[1].split()[0]) for each in read(view)) == outside


def test_bytes_count_and_not_types():
    pool = torch.zeros(64, dtype=torch.uint8)
    assert read(triton.reinterpret(pool[:32], tl.float32)) == []
    (finding,) = read(triton.reinterpret(pool[:30], tl.float32))
    assert "1 lane" in finding.message, "two of the last element's bytes are not the view's"


def test_an_unaligned_access_may_begin_within_the_view_and_end_outside():
    view = View(torch.zeros(16, dtype=torch.int32)[::2])
    assert view.outside(np.array([0, 2, 8]), 4).tolist() == [False, True, False]


def test_each_argument_has_its_own_view_of_a_shared_storage():
    pool = torch.zeros(32)
    assert strict(read_kernel[(1,)], pool[:8], pool[8:16], FIRST=0, STEP=1, BLOCK=8) == []
    (finding,) = strict(read_kernel[(1,)], pool[:4], pool[8:16], FIRST=0, STEP=1, BLOCK=8)
    assert finding.argument == "x"


@BLOCK_POINTERS
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers():
    @triton.jit
    def block_kernel(x, out, ROWS: tl.constexpr):
        block = tl.make_block_ptr(x, (ROWS, 4), (4, 1), (0, 0), (4, 4), (1, 0))
        tile = tl.load(block, boundary_check=(0, 1), padding_option="zero")
        tl.store(out + tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :], tile)

    x, out = torch.zeros(8, 4)[:2], torch.zeros(4, 4)
    assert strict(block_kernel[(1,)], x, out, ROWS=2) == []
    assert "8 lanes" in strict(block_kernel[(1,)], x, out, ROWS=4)[0].message


def test_descriptors():
    @triton.jit
    def descriptor_kernel(x, out):
        tl.store(out + tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :], x.load([0, 0]))

    x, out = torch.zeros(8, 4)[:2], torch.zeros(4, 4)
    assert strict(descriptor_kernel[(1,)], TensorDescriptor(x, [2, 4], [4, 1], [4, 4]), out) == []
    assert "8 lanes" in strict(descriptor_kernel[(1,)], TensorDescriptor(x, [4, 4], [4, 1], [4, 4]), out)[0].message


def test_a_pointer_from_memory_has_no_view():
    @triton.jit
    def table_kernel(table, x, out):
        tl.store(out, tl.load(tl.load(table).to(tl.pointer_type(tl.float32))) + tl.load(x))

    pool = torch.zeros(8)
    table = torch.tensor([pool[6:].data_ptr()])
    assert strict(table_kernel[(1,)], table, pool[:2], torch.zeros(1)) == []


def test_one_finding_per_line_and_argument():
    @triton.jit
    def rows_kernel(x, BLOCK: tl.constexpr):
        tl.store(x + tl.program_id(0) * 8 + tl.arange(0, BLOCK), 1.0)

    (finding,) = strict(rows_kernel[(3,)], torch.zeros(4, 8)[:, :6], BLOCK=8)
    assert "6 lanes in 3 programs" in finding.message


def test_another_value_is_refused():
    with pytest.raises(ValueError, match=r'views = True: expected "storage" or "strict"'), meter(views=True):
        pass


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_strided_view_against_a_set_of_elements(data):
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
    strides = data.draw(st.lists(st.integers(0, 7), min_size=len(shape), max_size=len(shape)))
    offset = data.draw(st.integers(0, 20))
    view = torch.zeros(128).as_strided(shape, strides, offset)
    own = {int(np.dot(place, strides)) for place in np.ndindex(*shape)}
    places = data.draw(st.lists(st.integers(-offset, 100), min_size=8, max_size=8))
    findings = strict(gather_kernel[(1,)], view, torch.tensor(places), torch.zeros(8), BLOCK=8)
    outside = [place for place in places if place not in own]
    assert [finding.argument for finding in findings] == ["x"] * bool(outside)
    if outside:
        assert f"; {len(outside)} lane" in findings[0].message
