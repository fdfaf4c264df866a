"""Mutants: every kind of small fault is made once, and a lab is told which ones its tests do not notice."""

import ast
import json

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.mutation.mutate import mutants
from threeloops_grader.mutation.report import is_enough
from threeloops_grader.mutation.run import run
from toy_course import SOURCE

ANSWER = '''\
import torch

LIMIT = 4

def scale(x, top: float = 2.0, *, keep=True) -> "Tensor":
    """Doc 1 < 2."""
    if top <= 0:
        raise ValueError(f"top = {top + 1}")
    total = 0
    for i in range(len(x)):
        if i > LIMIT and keep:
            continue
        total += x[i] * top
        x[i] = min(x[i], top)
    print(total, file=None)
    return torch.where(x != 0, x.float(), -total)
'''


@pytest.fixture(scope="module")
def faults():
    return {mutant.fault: mutant for mutant in mutants("scale", ANSWER)}


@pytest.mark.parametrize(
    ("operator", "fault"),
    [
        ("comparison", "top <= 0 → top < 0"),
        ("comparison", "top <= 0 → top > 0"),
        ("comparison", "i > LIMIT → i >= LIMIT"),
        ("comparison", "i > LIMIT and keep → i > LIMIT or keep"),
        ("comparison", "x != 0 → x == 0"),
        ("arithmetic", "x[i] * top → x[i] / top"),
        ("arithmetic", "total += x[i] * top → total -= x[i] * top"),
        ("arithmetic", "min(x[i], top) → max(x[i], top)"),
        ("arithmetic", "-total → total"),
        ("constant", "4 → 5"),
        ("constant", "4 → 3"),
        ("constant", "2.0 → 4.0"),
        ("constant", "True → False"),
        ("constant", "0 → 1"),
        ("dropped statement", "total += x[i] * top → nothing"),
        ("dropped statement", "x[i] = min(x[i], top) → nothing"),
        ("dropped statement", "print(total, file=None) → nothing"),
        ("dropped statement", "continue → pass"),
        ("cast", "x.float() → x"),
        ("guard", "if top <= 0: raise ValueError(f'top = {top + 1}') → nothing"),
        ("argument", "print(total, file=None) → print(total)"),
        ("argument", "torch.where(x != 0, x.float(), -total) → torch.where(x != 0, -total, x.float())"),
    ],
)
def test_each_kind_of_fault_is_made(faults, operator, fault):
    assert faults[fault].operator == operator


def test_every_mutant_is_another_program_that_compiles(faults):
    texts = [mutant.text for mutant in faults.values()]
    assert len(set(texts)) == len(texts) and ast.unparse(ast.parse(ANSWER)) + "\n" not in texts
    for text in texts:
        compile(text, "<mutant>", "exec")


def test_what_changes_nothing_that_runs_is_left_alone(faults):
    """Docstrings, annotations and the words of an error."""
    assert not [fault for fault in faults if "Tensor" in fault or fault.startswith(("top + 1", "'top", "Doc"))]
    assert all('"""Doc 1 < 2."""' in mutant.text for mutant in faults.values())


def test_two_faults_that_read_alike_have_names_of_their_own(faults):
    assert {"0 → 1", "0 → 1 #2"} <= faults.keys()
    assert faults["0 → 1"].line < faults["0 → 1 #2"].line


def test_who_catches_which_mutant_of_the_toy(toy):
    verdicts = {(v.mutant.exercise, v.mutant.fault): v for v in run(toy, "none")}
    divided = verdicts["mean", "sum(values) / len(values) → sum(values) * len(values)"]
    assert (divided.caught_by, divided.visibly) == (("mean",), True)
    sign = verdicts["rescale", "peak > TINY → peak >= TINY"]
    assert (sign.caught_by, sign.visibly) == (("rescale (zeros)",), True)
    empty = next(v for (_, fault), v in verdicts.items() if fault.startswith("if not values: raise"))
    assert (empty.caught_by, empty.visibly) == (("mean",), False)
    survivors = {fault for (_, fault), v in verdicts.items() if v.survived}
    assert "np.abs(values).max(initial=0.0) → np.abs(values).max()" in survivors


def test_an_equivalent_mutant_is_not_counted_and_one_there_is_not_is_named(toy):
    listed = toy.folder / "equivalent_mutants.json"
    entry = {"exercise": "rescale", "fault": "np.abs(values).max(initial=0.0) → np.abs(values).max()"}
    listed.write_text(json.dumps([entry | {"why": "no test has an empty array"}]))
    found = next(v for v in run(toy, "none", only="rescale") if v.mutant.fault == entry["fault"])
    assert (found.survived, found.equivalent) == (False, "no test has an empty array")
    for broken, words in (
        ([entry | {"why": " "}], "say why"),
        ([entry], "expected a list of objects"),
        (3, "expected"),
    ):
        listed.write_text(json.dumps(broken))
        with pytest.raises(LabError, match=words):
            run(toy, "none", only="rescale")
    listed.write_text(json.dumps([entry | {"fault": "1 → 2", "why": "so"}]))
    with pytest.raises(LabError, match="names mutants that there are not: rescale: 1 → 2"):
        run(toy, "none", only="rescale")


def test_a_lab_without_tests_that_bite_falls_short(toy):
    toy.source.write_text(SOURCE.replace("check.close(mean(SAMPLES), 3.0,", "check.close(mean(SAMPLES) * 0, 0.0,"))
    assert not is_enough(run(toy, "none", only="mean"))
