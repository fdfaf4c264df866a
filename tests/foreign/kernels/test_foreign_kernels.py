"""Kernels in the shapes of public code compute what torch computes, move the bytes counted by hand, and compile."""

import inspect as python_inspect
from collections import Counter

import pytest
import torch
from threeloops.inner.codegen import inspect
from threeloops.inner.meter import meter
from triton_release import RELEASE

from kernels import every_case

pytestmark = pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")

CASES = [each for each in every_case() if not each.until or tuple(map(int, each.until.split("."))) >= RELEASE]
RIGHT = [each for each in CASES if not each.faults]
BROKEN = [each for each in CASES if each.faults]


def metered(case):
    torch.manual_seed(0)
    with meter(undefined_lanes=True) as traffic:
        values = case.launch()
    return traffic, values


def largest_difference(ours, theirs):
    """The largest difference between two tensors or tuples of them, relative to numbers above 1."""
    if isinstance(ours, tuple):
        return max(largest_difference(*pair) for pair in zip(ours, theirs, strict=True))
    assert ours.shape == theirs.shape
    difference = (ours.double() - theirs.double()).abs() / theirs.double().abs().clamp(min=1)
    return torch.where(ours.double() == theirs.double(), 0.0, difference.nan_to_num(torch.inf, torch.inf)).max().item()


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_kernel_computes_what_torch_does_and_moves_the_bytes_counted_by_hand(case):
    traffic, values = metered(case)
    assert largest_difference(*values) <= case.tolerance
    assert (traffic.total.unique_loaded, traffic.total.unique_stored) == (case.loaded, case.stored)
    assert traffic.findings == []


@pytest.mark.gpu
@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_gpu_computes_the_same(case):
    torch.manual_seed(0)
    with torch.device("cuda"):
        values = case.launch()
    assert largest_difference(*values) <= case.tolerance


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_a_broken_kernel_is_found_out(case):
    traffic, _ = metered(case)
    assert {finding.kind for finding in traffic.findings} == set(case.faults)
    assert (traffic.total.unique_loaded, traffic.total.unique_stored) == (case.loaded, case.stored)


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, marks=[pytest.mark.slow] * each.compiles_slowly) for each in CASES],
    ids=lambda case: case.name,
)
def test_a_kernel_compiles_for_an_h100(case):
    torch.manual_seed(0)
    codes = inspect(case.launch, "sm_90")
    assert codes
    assert [code.misfits for code in codes if code.misfits] == []


def test_the_registry_has_each_kernel_once_with_its_idea():
    assert len(CASES) >= 50
    assert [name for name, count in Counter(each.name for each in CASES).items() if count > 1] == []
    assert [each.name for each in CASES if not each.idea.endswith(".")] == []


def test_cases_are_short():
    lines = {each.name: len(python_inspect.getsource(each.launch).splitlines()) for each in CASES}
    assert {name: count for name, count in lines.items() if count > 20} == {}


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (torch.ones(2), torch.ones(2, dtype=torch.float64), 0.0),
        (torch.tensor([1.0, 3.0]), torch.tensor([1.0, 4.0]), 0.25),
        ((torch.zeros(1), torch.zeros(1)), (torch.zeros(1), torch.full((1,), 0.5)), 0.5),
        (torch.tensor([torch.nan]), torch.ones(1), torch.inf),
        (torch.tensor([-torch.inf]), torch.tensor([-torch.inf]), 0.0),
        (torch.tensor([torch.inf]), torch.ones(1), torch.inf),
    ],
)
def test_values_are_compared_by_their_largest_difference(ours, theirs, expected):
    assert largest_difference(ours, theirs) == expected
