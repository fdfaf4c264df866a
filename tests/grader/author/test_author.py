"""`threeloops new` makes a lab that passes, and `threeloops test` says what of a lab does not do what it must."""

import subprocess
import sys
from pathlib import Path

import pytest
from threeloops_grader.author.new_lab import begin
from threeloops_grader.author.trial import trials
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.sandbox.pool import close_pools

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    yield begin("30_my_lab", tmp_path_factory.mktemp("course"))
    close_pools()


def test_a_new_lab_passes_as_it_is(lab):
    found = {trial.name: trial for trial in trials(lab, "none")}
    assert {name: trial.faults for name, trial in found.items()} == dict.fromkeys(
        [
            "the reference",
            "the untouched lab",
            "the lab half done",
            "right answers 1",
            *(f"wrong answers {n}" for n in (1, 2, 3)),
        ],
        (),
    )


def test_each_kind_of_answer_that_does_not_do_what_it_must_is_named(lab):
    text = (lab.folder / "answers.md").read_text()
    text = text.replace("+    return math.prod(shape)\n", "+    return element_bytes * math.prod(shape)\n")
    text = text.replace("    return size\n", "    return 24\n")
    (lab.folder / "answers.md").write_text(text.replace("a number is one element", "one is the moon"))
    faults = "\n".join(fault for trial in trials(lab, "none") for fault in trial.faults)
    assert "right/tensor_bytes__a_loop: tensor_bytes_test gives 0 of 100 points" in faults
    assert (
        "answers.md:5, wrong/tensor_bytes__counts_elements: tensor_bytes_test gives 100 points, expected none" in faults
    )
    assert "a_number_has_no_elements expects 'one is the moon', and the tests said:" in faults


def test_a_new_lab_has_the_style_of_the_others(tmp_path):
    lab = begin("30_my_lab", tmp_path)
    command = [sys.executable, "-m", "ruff", "format", "--check", "--config", ROOT / "pyproject.toml", lab.folder]
    assert subprocess.run(command).returncode == 0


def test_a_name_that_another_lab_has_is_refused(tmp_path):
    begin("30_my_lab", tmp_path)
    with pytest.raises(LabError, match="30_my_lab has this name already"):
        begin("21_my_lab", tmp_path)


@pytest.mark.parametrize("name", ["my_lab", "1_x", "20_My", "20_../x", "20_"])
def test_a_name_that_is_none_changes_nothing(tmp_path, name):
    with pytest.raises(LabError, match="expected two digits and words"):
        begin(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_taken_is_refused(lab):
    with pytest.raises(LabError, match="lab 30 is there already: 30_my_lab"):
        begin("30_other", lab.root)
