"""Mutants: every kind of small fault is made once, and a lab is told which ones its tests do not notice."""

import ast
import json

import pytest
from threeloops_grader.authoring.labs import LabError, all_labs
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.mutation.equivalent import equivalent_mutants
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


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("top <= 0 → top < 0", "if top < 0:"),
        ("4 → 5", "LIMIT = 5"),
        ("total += x[i] * top → nothing", "total += x[i] * top"),
        ("if top <= 0: raise ValueError(f'top = {top + 1}') → nothing", "if top <= 0:"),
        ("continue → pass", "continue"),
    ],
)
def test_a_mutant_knows_the_line_with_its_fault(faults, fault, place):
    assert faults[fault].place == place


ENTRY = {
    "exercise": "rescale",
    "fault": "np.abs(values).max(initial=0.0) → np.abs(values).max()",
    "line": "peak = np.abs(values).max()",
    "why": "no test has an empty array",
}


def test_an_equivalent_mutant_is_not_counted(toy):
    (toy.folder / "equivalent_mutants.json").write_text(json.dumps([ENTRY]))
    verdict = next(v for v in run(toy, "none", only="rescale") if v.mutant.fault == ENTRY["fault"])
    assert (verdict.survived, verdict.equivalent) == (False, "no test has an empty array")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([ENTRY | {"why": " "}], "say why"),
        ([{"exercise": "rescale", "fault": "1 → 2"}], "expected a list of objects"),
        ([ENTRY | {"why": 3}], "each of them a text"),
        (3, "expected a list of objects"),
        ([ENTRY, ENTRY], "stands twice"),
        ([ENTRY | {"fault": "1 → 2"}], "rescale, 1 → 2: is not a mutant.*name it 'np.abs.*max\\(\\)'"),
        ([ENTRY | {"line": "peak = 3"}], "is now in the line 'peak = np.*the entry is about 'peak = 3': check by hand"),
    ],
)
def test_a_list_of_equivalent_mutants_that_is_out_of_date_is_refused(toy, entries, words):
    (toy.folder / "equivalent_mutants.json").write_text(json.dumps(entries))
    with pytest.raises(LabError, match=words):
        run(toy, "none", only="rescale")


def test_an_entry_whose_number_moved_to_another_line_is_refused(toy):
    (toy.folder / "equivalent_mutants.json").write_text(
        json.dumps([{"exercise": "f", "fault": "1 → 2 #2", "line": "b = 2", "why": "b is not used"}])
    )
    made = {"f": list(mutants("f", "a = 1\nb = 1\nc = 1\n"))}
    assert equivalent_mutants(toy, made) == {("f", "1 → 2 #2"): "b is not used"}
    with pytest.raises(LabError, match="'c = 2'; the entry is about 'b = 2': name it '1 → 2'"):
        equivalent_mutants(toy, {"f": list(mutants("f", "b = 1\nc = 1\n"))})


@pytest.mark.parametrize("lab", all_labs(), ids=lambda lab: lab.slug)
def test_the_lists_of_equivalent_mutants_are_up_to_date(lab):
    trusted = manifest(lab)
    equivalent_mutants(lab, {e.id: list(mutants(e.id, trusted.text(e.id))) for e in trusted.exercises})


def test_a_lab_without_tests_that_bite_falls_short(toy):
    toy.source.write_text(SOURCE.replace("check.close(mean(SAMPLES), 3.0,", "check.close(mean(SAMPLES) * 0, 0.0,"))
    assert not is_enough(run(toy, "none", only="mean"))
