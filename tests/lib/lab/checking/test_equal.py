"""What `check.equal` takes for the same plain data, and what it refuses."""

import collections
import dataclasses
import enum
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


class Bound(enum.Enum):
    COMPUTE = 1
    MEMORY = 2


class Phase(enum.IntEnum):
    PREFILL = 1
    DECODE = 2


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([], []),
        (np.int64(5), 5),
        (torch.tensor(5), 5),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.ones(2, 3).shape, (2, 3)),
        ((2, 3), torch.Size([2, 3])),
        (1, 1.0),
        ("ring", "ring"),
        (None, None),
        (b"ab", b"ab"),
        (True, True),
        (np.bool_(True), True),
        (np.array(["fetch", "train"])[1], "train"),
        ("train", np.str_("train")),
        (np.str_("train"), np.str_("train")),
        ({"a": [1, (2, "x")]}, {"a": [1, (2, "x")]}),
        (collections.OrderedDict(a=1), {"a": 1}),
        ({1, 2}, {2, 1}),
        (Bound.MEMORY, Bound.MEMORY),
        (Phase.DECODE, Phase.DECODE),
        (Work(1, 2.0), Work(1, 2.0)),
        (torch.float32, torch.float32),
        (torch.device("cpu"), torch.device("cpu")),
        (np.dtype("float32"), np.dtype("float32")),
        (np.array(["a", "b"]), np.array(["a", "b"])),
        (range(3), range(3)),
        (collections.deque([1, 2]), collections.deque([1, 2])),
        (-0.0, 0.0),
    ],
)
def test_equal_takes_the_same_plain_data(actual, expected):
    check.equal(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected", "word"),
    [
        (5.0, 5, "a float"),
        (torch.ones(2), [1, 1], "a float"),
        (1, True, "an int"),
        (True, 1, "a bool"),
        ((1, 2), [1, 2], "a tuple"),
        ([(1, 2)], [[1, 2]], "at [0]"),
        ((), [], "a tuple"),
        (math.nan, math.nan, "nan"),
        (0.1 + 0.2, 0.3, "0.3"),
        ("rings", "ring", "'rings'"),
        ("x" * 50 + "a", "x" * 50 + "b", "they part at 50"),
        ({1, 2}, {1, 3}, "without 3 and with the unexpected 2"),
        ([1], {1}, "a set"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "at ['a'][1]"),
        (Bound.MEMORY, Bound.COMPUTE, "MEMORY"),
        (1, Bound.COMPUTE, "COMPUTE"),
        (Phase.DECODE, 2, "DECODE"),
        (2, Phase.DECODE, "DECODE"),
        (torch.float16, torch.float32, "torch.float16"),
        ("float32", torch.float32, "'float32'"),
        ([1, 2, 4], [1, 2, 3], "at [2]"),
        (np.array(["a"]), np.array(["b"]), "numpy array"),
        (np.array(["a"]), np.array(["a", "b"]), "(1,)"),
    ],
)
def test_equal_refuses(actual, expected, word):
    assert word in refusal(check.equal, actual, expected)
