"""Plain values come back with the types that they had, or are refused; so are tensors whose memory has other values."""

from collections import Counter, OrderedDict, defaultdict, namedtuple
from types import MappingProxyType

import pytest
import torch
from threeloops.training.checkpoint import Checkpointer, CorruptCheckpointError, LocalStore
from threeloops.training.checkpoint.format import from_plain, to_plain
from torch import nn

Point = namedtuple("Point", "x y")


def saved_and_loaded(folder, value):
    Checkpointer(LocalStore(folder)).save(1, {"x": value})
    return Checkpointer(LocalStore(folder)).load().state["x"]


@pytest.mark.parametrize(
    "value",
    [
        {0: "a", 1: {2: ()}},
        {"0": 1, 0: 2, True: 3},
        OrderedDict(b=1, a=OrderedDict({3: 4})),
        Counter([2, 5, 5]),
        torch.Size([3, 4]),
        (torch.Size([]), [torch.Size([1])]),
        {"!tuple": [1], "!OrderedDict": []},
        {"!with": 1},
        2**100,
    ],
    ids=str,
)
def test_values_come_back_with_their_types(tmp_path, value):
    found = saved_and_loaded(tmp_path, value)
    assert type(found) is type(value) and repr(found) == repr(value)


def test_an_ordered_dict_keeps_its_attributes(tmp_path):
    value = nn.BatchNorm1d(2).state_dict()
    for name in list(value):
        value[name] = None
    found = saved_and_loaded(tmp_path, value)
    assert found == value and found._metadata == value._metadata and type(found._metadata) is OrderedDict


class Text(str):
    pass


def containing_itself():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Point(1, 2), r"Point would come back as tuple: save tuple\(value\)"),
        ([Point(1, 2)], "Point would come back as tuple"),
        (defaultdict(int, a=1), r"defaultdict would come back as dict: save dict\(value\)"),
        (Text("a"), "Text would come back as str"),
        (MappingProxyType({}), "mappingproxy: expected"),
        (containing_itself(), "a value nested more than 100 deep, or one that contains itself"),
        ({"\udc80": 1}, "text with a lone surrogate at 0"),
    ],
)
def test_values_that_would_come_back_otherwise_are_refused(tmp_path, value, says):
    with pytest.raises(ValueError, match=f"rank 0: 'x': {says}"):
        saved_and_loaded(tmp_path, value)
    assert list(tmp_path.iterdir()) == []


def test_a_hundred_levels_are_kept(tmp_path):
    value = ()
    for _ in range(50):
        value = [{0: value}]
    assert saved_and_loaded(tmp_path, value) == value


@pytest.mark.parametrize(
    "value", [{"!later": 1}, {"!tuple": 1}, {"!with": [{"!tuple": []}, {"a": 1}]}, {"!Size": ["a"]}]
)
def test_what_no_save_writes_is_not_a_value(value):
    with pytest.raises(CorruptCheckpointError, match="is not a value"):
        from_plain(value)


def test_what_looks_like_a_tag_is_kept():
    assert from_plain(to_plain({"!later": 1})) == {"!later": 1}


COMPLEX = torch.complex(torch.ones(2), torch.ones(2))


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (COMPLEX.conj(), "a conjugated tensor: .* save its resolve_conj"),
        (COMPLEX.conj().imag, "a negated tensor: .* save its resolve_neg"),
        (torch.eye(2).to_sparse(), "a sparse tensor: save its indices and values"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "a nested tensor: save its"),
        (torch.ones(2, device="meta"), "a meta tensor: it has no values"),
    ],
    ids=["conj", "neg", "sparse", "nested", "meta"],
)
def test_tensors_whose_memory_is_not_their_values_are_refused(tmp_path, tensor, says):
    with pytest.raises(ValueError, match=f"rank 0: 'x' is {says}"):
        saved_and_loaded(tmp_path, tensor)
    assert list(tmp_path.iterdir()) == []


def test_a_template_that_cannot_be_filled_is_no_damage(tmp_path):
    saved_and_loaded(tmp_path, torch.ones(2))
    with pytest.raises(ValueError, match="step-00000001, rank 0: 'x' is a meta tensor"):
        Checkpointer(LocalStore(tmp_path)).load({"x": torch.ones(2, device="meta")})
