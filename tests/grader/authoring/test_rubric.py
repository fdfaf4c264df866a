"""A lab's rubric: criteria with points in the header, and the table that students read below the question."""

import nbformat
import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.authoring.lint import lint
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.authoring.markdown.rubric import Criterion
from threeloops_grader.release.release import release, stale

SOUND = "- {name: evidence, points: 4, text: quotes a number}"


def with_rubric(lab, *rows: str):
    header = "".join(f"#       {row}\n" for row in rows)
    lab.source.write_text(
        lab.source.read_text().replace("#     minutes: 5\n", f"#     minutes: 5\n#     rubric:\n{header}")
    )
    return lab


def test_without_a_rubric_the_release_is_what_it_was(toy):
    release([toy])
    assert toy.rubric == ()
    assert nbformat.read(toy.released, 4).cells[-2].source == "In your own words: when is a mean a poor summary?"


def test_students_read_it_below_the_question(toy):
    before = toy.master().cells[-2].id
    release([with_rubric(toy, SOUND, "- {name: a_limit, points: 2.5, text: says when}")])
    question = nbformat.read(toy.released, 4).cells[-2]
    assert question.source.endswith(
        "Your answer earns up to 6.5 points:\n\n| criterion | what earns the points | points |\n|---|---|---|\n"
        "| evidence | quotes a number | 4 |\n| a limit | says when | 2.5 |"
    )
    assert question.id == before  # grading knows the cell by it
    assert not [line for line in stale([toy]) if "90_toy/" in line]
    assert toy.rubric == (Criterion("evidence", 4.0, "quotes a number"), Criterion("a_limit", 2.5, "says when"))
    assert manifest(toy).max_score == 100.0  # the tests' points


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            "- {name: Evidence, points: 4, text: x}",
            "a criterion's name is 'Evidence', expected at most 30 small letters",
        ),
        ("- {name: evidence, points: 0, text: x}", "criterion evidence has 0 points, expected a number above 0"),
        ("- {name: evidence, points: many, text: x}", "criterion evidence has 'many' points, expected a number"),
        (
            "- {name: evidence, points: 4, text: 'a | b'}",
            "the text of criterion evidence is 'a | b', expected 1 to 200",
        ),
        ("- {name: evidence, points: 4, text: ''}", "the text of criterion evidence is '', expected 1 to 200"),
        (
            "- {name: evidence, points: 4}",
            "criterion 2 of the rubric is {'name': 'evidence', 'points': 4}, expected name",
        ),
        ("- evidence", "criterion 2 of the rubric is 'evidence', expected name, points and text"),
        (SOUND.replace("evidence", "first"), "2 criteria of the rubric are called first"),
    ],
)
def test_a_broken_rule_is_named(toy, row, said):
    faults = lint(with_rubric(toy, SOUND.replace("evidence", "first"), row))
    assert any(said in fault for fault in faults), faults
    with pytest.raises(LabError, match="90_toy, header: "):
        toy.rubric  # noqa: B018


def test_a_rubric_is_a_list(toy):
    (fault,) = lint(with_rubric(toy, "evidence: 4"))
    assert "rubric is {'evidence': 4}, expected a list of 1 to 8 criteria" in fault
