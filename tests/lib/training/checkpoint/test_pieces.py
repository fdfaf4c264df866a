"""How tensors lie on ranks: ranges as boxes, overlaps, and who writes what."""

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.checkpoint import Sharded, flat_range, sharded_along
from threeloops.training.checkpoint.pieces import Box, _range_boxes, assign_writers, held, overlap

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


def elements(shape, box):
    """The flat numbers of a box's elements, row by row."""
    numbers = np.arange(prod(shape)).reshape(shape)
    return numbers[tuple(slice(s, s + n) for s, n in zip(*box, strict=True))].reshape(-1).tolist()


@given(st.data(), SHAPES)
def test_a_range_is_few_boxes_that_hold_its_elements_in_order(data, shape):
    begin = data.draw(st.integers(0, prod(shape)))
    end = data.draw(st.integers(begin, prod(shape)))
    boxes = _range_boxes(shape, begin, end)
    assert [number for box in boxes for number in elements(shape, box)] == list(range(begin, end))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    assert all(prod(box.shape) > 0 for box in boxes)


@given(st.data(), SHAPES)
def test_an_overlap_holds_the_elements_of_both(data, shape):
    def box():
        start = [data.draw(st.integers(0, n - 1)) for n in shape]
        return Box(tuple(start), tuple(data.draw(st.integers(1, n - s)) for n, s in zip(shape, start, strict=True)))

    one, other = box(), box()
    both = sorted(set(elements(shape, one)) & set(elements(shape, other)))
    common = overlap(one, other)
    assert (elements(shape, common) if common else []) == both


def test_the_parts_of_a_range_are_views_of_it():
    values = torch.arange(17.0)
    parts = flat_range((3, 5, 2), 4, values).parts
    assert [start for start, _ in parts] == [(0, 2, 0), (1, 0, 0), (2, 0, 0)]
    assert [tuple(part.shape) for _, part in parts] == [(1, 3, 2), (1, 5, 2), (1, 1, 1)]
    parts[1][1].fill_(-1)
    assert (values == -1).nonzero().flatten().tolist() == list(range(6, 16))


def test_equal_parts_along_a_dimension():
    part = sharded_along(-1, torch.zeros(2, 3), rank=2, ranks=4)
    assert part.shape == (2, 12) and part.parts[0][0] == (0, 6)


@pytest.mark.parametrize(
    ("start", "shape", "dtype", "says"),
    [
        ((2, 0), (2, 5), torch.float32, "a part of shape (2, 5) at (2, 0) is not inside of (3, 5)"),
        ((-1, 0), (1, 5), torch.float32, "not inside"),
        ((0,), (5,), torch.float32, "not inside"),
        ((0, 0), (1, 5), torch.float64, "expected torch.float32"),
    ],
)
def test_a_part_must_fit(start, shape, dtype, says):
    with pytest.raises(ValueError) as caught:
        Sharded((3, 5), torch.float32, ((start, torch.zeros(shape, dtype=dtype)),))
    assert says in str(caught.value)


def test_a_plain_tensor_is_whole_and_empty_parts_are_not_held():
    state = {"whole": torch.zeros(2, 3), "scalar": torch.zeros(()), "none": torch.zeros(0, 3)}
    state["nothing"] = Sharded((4,), torch.float32, ())
    assert set(held(state)) == {("whole", Box((0, 0), (2, 3))), ("scalar", Box((), ()))}


HOLDINGS = st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.just(0)), min_size=1, max_size=5)


@given(HOLDINGS, st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 50)))
def test_every_box_is_written_once_by_a_rank_that_holds_it(holdings, sizes):
    boxes = [{(name, Box((), ())): sizes.get(name, 1) for name in holding} for holding in holdings]
    writes = assign_writers(boxes)
    assert sorted(key for written in writes for key in written) == sorted(set().union(*boxes))
    assert all(written <= set(has) for written, has in zip(writes, boxes, strict=True))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 6))
def test_replicas_share_the_work(sizes, ranks):
    holding = {(f"t{number}", Box((), ())): size for number, size in enumerate(sizes)}
    loads = [sum(holding[key] for key in written) for written in assign_writers([holding] * ranks)]
    assert max(loads) - min(loads) <= max(sizes)  # the largest first: nobody is ahead by more than one box


def test_what_a_rank_alone_has_counts_before_replicas_are_given_out():
    own, shared = ("own", Box((), ())), ("shared", Box((), ()))
    assert assign_writers([{own: 5, shared: 9}, {shared: 9}]) == [{own}, {shared}]
