"""Programs in the shapes of public code give on the virtual cluster what they give on gloo, at the predicted cost."""

from collections import Counter
from pathlib import Path

import page
import pytest
import torch
from programs import every_program
from threeloops.training.cluster import Cluster, ClusterError, RankFailed, run_on_processes

PROGRAMS = every_program()
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""Tolerances for the programs whose entry says that their values may be rounded in another way."""


def same(ours, theirs, rounded):
    """Whether two nested values are equal: to the bit, or up to rounding."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key], rounded) for key in ours)
    if isinstance(ours, list | tuple):
        pairs = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(same(our, their, rounded) for our, their in pairs)
    if isinstance(ours, torch.Tensor):
        equal = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        return equal and (torch.allclose(ours, theirs, RELATIVE, ABSOLUTE) if rounded else ours.equal(theirs))
    if isinstance(ours, float) and rounded:
        return ours == pytest.approx(theirs, rel=RELATIVE, abs=ABSOLUTE)
    return type(ours) is type(theirs) and ours == theirs


def on_gloo(program):
    return run_on_processes("gloo", program.ranks, program.function, seconds=60)


def on_the_virtual_cluster(program):
    return Cluster(program.ranks).run(program.function, seconds=60)


@pytest.mark.parametrize("program", [each for each in PROGRAMS if not each.refused], ids=lambda program: program.name)
def test_a_program_gives_the_values_of_gloo_at_its_cost(program):
    theirs = on_gloo(program)
    run = on_the_virtual_cluster(program)
    assert same(list(run.results), theirs, bool(program.rounding)), f"gloo gives {theirs}, and here: {run.results}"
    if program.cost:
        assert run.seconds == pytest.approx(program.cost.seconds, rel=1e-9)
        assert sum(map(sum, run.bytes)) == program.cost.sent


@pytest.mark.parametrize("program", [each for each in PROGRAMS if each.refused], ids=lambda program: program.name)
def test_a_program_that_cannot_run_is_refused_by_name(program):
    with pytest.raises(ClusterError, match=program.refused):
        on_the_virtual_cluster(program)
    if program.gloo_runs:
        assert len(on_gloo(program)) == program.ranks
    else:
        with pytest.raises(RankFailed, match=program.refused):
            on_gloo(program)


def test_the_registry_has_each_program_once_with_its_idea():
    assert not [name for name, count in Counter(program.name for program in PROGRAMS).items() if count > 1]
    assert not [program.name for program in PROGRAMS if not program.idea.endswith(".")]
    assert {program.ranks for program in PROGRAMS} <= {2, 3, 4}


def test_programs_are_short():
    lines = {program.name: len(page.source(program).splitlines()) for program in PROGRAMS}
    assert {name: count for name, count in lines.items() if count > 40} == {}


def test_the_page_of_what_runs_is_up_to_date():
    text = Path(page.PAGE).read_text()
    assert text == page.written(PROGRAMS), "run `python tests/foreign/page.py` and commit docs/what_runs.md"
    assert len(text.splitlines()) <= 120


@pytest.mark.parametrize(
    ("ours", "theirs", "rounded", "expected"),
    [
        ([1.0, (2, None)], [1.0, (2, None)], False, True),
        ([1.0], [1.0, 2.0], False, False),
        ([1.0], [1.0 + 1e-9], False, False),
        ([1.0], [1.0 + 1e-9], True, True),
        ([1.0], [1], False, False),
        ({"a": torch.ones(2)}, {"a": torch.ones(2)}, False, True),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, False, False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), True, False),
        (torch.ones(2), torch.full((2,), 1.1), True, False),
    ],
)
def test_values_are_compared_with_their_types(ours, theirs, rounded, expected):
    assert same(ours, theirs, rounded) == expected
