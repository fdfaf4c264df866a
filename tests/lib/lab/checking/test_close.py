"""What `check.close` takes for the same numbers, what it refuses, and what its refusal says."""

import collections
import dataclasses
import math

import numpy as np
import pytest
import torch
from threeloops.lab import CheckFailed, check


def refusal(fn, *args, **kwargs) -> str:
    with pytest.raises(CheckFailed) as caught:
        fn(*args, **kwargs)
    return str(caught.value)


@dataclasses.dataclass(frozen=True)
class Work:
    bytes: int
    flops: float


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (1.0, 1.0),
        (1, 1.0),
        (np.float16(0.5), 0.5),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor([0.5, 2.0], dtype=torch.float8_e4m3fn), [0.5, 2.0]),
        (torch.nn.Parameter(torch.ones(2)), np.ones(2)),
        ([[1, 2], [3, 4]], torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
        ((1.0, 2.0), [1.0, 2.0]),
        (np.array([math.inf, -math.inf]), [math.inf, -math.inf]),
        (torch.zeros(0, 3), np.zeros((0, 3))),
        (1 + 2j, 1 + 2j),
        (1.0, 1 + 0j),
        ({"loss": 1.0, "steps": 3}, {"loss": 1.0 + 1e-9, "steps": 3}),
        ([torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]),
        (Work(8, 2.0), Work(8, 2.0 + 1e-9)),
        (Point(1.0, 2.0), Point(1.0, 2.0)),
        (torch.ones(3, 4).T, np.ones((4, 3))),
    ],
)
def test_close_takes_numbers_of_every_origin(actual, expected):
    check.close(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected", "word"),
    [
        (math.nan, 1.0, "nan"),
        (math.nan, math.nan, "nan"),
        (1.0, math.nan, "nan"),
        (math.inf, 1.0, "inf"),
        (math.inf, -math.inf, "inf"),
        (1e308, math.inf, "inf"),
        (True, 1.0, "a bool"),
        (1.0, True, "expected   a bool"),
        (torch.ones(2, dtype=torch.bool), torch.ones(2), "a bool"),
        ([True, 1], [1, 1], "True"),
        (1 + 0j, 1.0, "a complex"),
        (None, 1.0, "the float 1.0"),
        ("1.0", 1.0, "'1.0'"),
        (torch.ones(3), torch.ones(3, 1), "shape (3, 1)"),
        (torch.ones(1), torch.ones(3), "shape (1,)"),
        (torch.ones(()), torch.ones(3), "a single number"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], "2 elements"),
        ([[1.0], [1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]], "[[1.0], [1.0, 2.0]]"),
        (torch.ones(2).to_sparse(), torch.ones(2), "sparse"),
        (torch.ones(2, device="meta"), torch.ones(2), "meta"),
        ({"a": 1.0}, {"b": 1.0}, "without 'b' and with the unexpected 'a'"),
        (1.0, {"b": 1.0}, "a dict"),
        (Work(8, 2.0), Point(8, 2.0), "a Point"),
        (Work(9, 2.0), Work(8, 2.0), "at .bytes"),
    ],
)
def test_close_refuses(actual, expected, word):
    assert word in refusal(check.close, actual, expected)


def test_integers_compare_exactly_even_where_a_float64_cannot_tell_them_apart():
    check.close(2**60, 2**60)
    check.close(2**70, 2**70)
    assert "difference +1" in refusal(check.close, 2**53 + 1, 2**53)
    assert "difference +1" in refusal(check.close, 2**70 + 1, 2**70)
    assert "difference −1" in refusal(check.close, np.uint64(2**63), np.uint64(2**63 + 1))
    refusal(check.close, torch.tensor([1, 2**62]), [1, 2**62 + 1])
    refusal(check.close, 10**400 + 1, 10**400)


def test_a_tolerance_that_is_asked_for_also_holds_between_integers():
    check.close(1049, 1000, rtol=0.05)
    check.close([1003, 997], [1000, 1000], atol=3)
    assert "allowed: 50" in refusal(check.close, 1051, 1000, rtol=0.05)


@pytest.mark.parametrize("tolerance", [{"rtol": -1.0}, {"atol": math.inf}, {"rtol": math.nan}])
def test_a_tolerance_that_would_admit_anything_or_nothing_is_an_error_of_the_check(tolerance):
    with pytest.raises(ValueError, match="finite tolerance"):
        check.close(1.0, 1.0, **tolerance)


def test_the_card_names_quantity_worst_element_value_expected_difference_and_cause():
    actual = torch.tensor([[1.0, 2.0], [3.0, 5002.5]])
    text = refusal(
        check.close, actual, [[1.0, 2.0], [3.5, 5002.0]], unit="µs", what="end of the last kernel", hint="no overlap"
    )
    assert text.split("\n") == [
        "check",
        "  quantity   end of the last kernel at [1, 0] (2 of 4 elements are off; this is the worst)",
        "  value      3 µs",
        "  expected   3.5 µs",
        "  difference −0.5 µs (−14.3 %); allowed: 3.5e-06 µs",
        "  hint       no overlap",
    ]
    assert "at [1, 0]" in refusal(check.close, actual, [[1.0, 2.0], [3.6, 5002.0]])
    assert "at [0][1]" in refusal(check.close, [[1.0, 9.0]], [[1.0, 2.0]])


def test_a_record_may_have_a_hint_for_each_field():
    hint = {"bytes": "count the streams", "": "look again"}
    assert "hint       count the streams" in refusal(check.close, Work(1, 2), Work(9, 2), hint=hint)
    assert "hint       look again" in refusal(check.close, Work(1, 2), Work(1, 9), hint=hint)
    assert "hint       count the streams" in refusal(check.close, [Work([1, 2], 2)], [Work([1, 9], 2)], hint=hint)
    assert "hint  " not in refusal(check.close, Work(1, 2), Work(1, 9), hint={"bytes": "count the streams"})


def test_another_kind_of_value_earns_no_hint_about_its_size():
    assert "hint  " not in refusal(check.close, (1, 2), Work(1, 2), hint="count the streams")
    assert "hint  " not in refusal(check.equal, 12.0, 12, hint="count the streams")
    assert "hint  " in refusal(check.equal, 11, 12, hint="count the streams")


def test_nan_is_worse_than_any_number():
    assert "at [1] (2 of 3" in refusal(check.close, [1e9, math.nan, 3.0], [1.0, 2.0, 3.0])


def test_numbers_that_differ_never_print_alike():
    text = refusal(check.close, 1.0 + 1e-12, 1.0, rtol=0.0)
    value, expected = (line.split()[-1] for line in text.split("\n")[2:4])
    assert value != expected


def test_an_expected_value_that_is_no_plain_data_is_an_error_of_the_check():
    with pytest.raises(TypeError, match="expected holds an object"):
        check.close(1.0, object())


def test_a_memory_mapped_array_is_an_array(tmp_path):
    stored = np.memmap(tmp_path / "state", dtype=np.float32, mode="w+", shape=(2, 3))
    check.close(stored, np.zeros((2, 3)))
    assert "at [0, 0]" in refusal(check.close, stored, np.ones((2, 3)))
    assert "a numpy array of shape (2, 3)" in refusal(check.close, stored, {"a": 1.0})
