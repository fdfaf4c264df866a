"""`threeloops class similar`: planted copies are found among answers that were written independently of each other."""

import ast
import shutil
from pathlib import Path

import nbformat
import pytest
from planted_copies import DISGUISES, disguised
from threeloops_grader import cli
from threeloops_grader.authoring.answers import right_answers, wrong_answers
from threeloops_grader.authoring.labs import all_labs, grade_id
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.authoring.regions import without
from threeloops_grader.classroom.similar import comparison
from threeloops_grader.classroom.similar.comparison import compare
from threeloops_grader.classroom.similar.fingerprint import fingerprint, given_names
from threeloops_grader.classroom.similar.page import similar_page
from toy_course import add_answers, whole
from typer.testing import CliRunner

REPOSITORY = Path(__file__).resolve().parents[3]
LABS = all_labs(REPOSITORY)
ALL = tuple(DISGUISES)
WAYS = [("renamed",), ("reordered",), ("reformatted",), ("padded",), ALL]


def hand_in(folder, lab, student, answers):
    """Hand in a lab with the answers to some exercises, and nothing in the others."""
    notebook = lab.master()
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution") and cell.cell_type == "code":
            cell.source = answers.get(grade_id(cell), without(cell.source, "SOLUTION"))
    path = folder / student / lab.slug / f"{lab.slug}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


def independent_answers(lab, exercise):
    """The course's right answers to an exercise, and a wrong one, each written in a way of its own.

    Right answers that are written as changes of the reference are not independent of the wrong one, which is one too.
    """
    changes = {section.partition("\n")[0] for section in _sections(lab) if "\n```diff" in section}
    right = [
        answer.text
        for answer in right_answers(lab)
        if answer.exercise == exercise and f"right/{answer.name}" not in changes
    ]
    wrong = [answer.text for answer in wrong_answers(lab) if answer.exercise == exercise]
    return right + wrong[:1]


def _sections(lab):
    return (lab.folder / "answers.md").read_text().split("\n## ")[1:]


def stub_of(lab, exercise):
    return without(next(cell.source for cell in lab.master().cells if cell.id == exercise), "SOLUTION")


def is_large(lab, exercise, source):
    given, stub = given_names(stub_of(lab, exercise)), stub_of(lab, exercise)
    return fingerprint(source, given).without(fingerprint(stub, given)).size >= comparison._LEAST_PARTS


def planted(lab, folder):
    """A class in which every independent answer was copied once: (pairs of a copy and its source)."""
    answers, truth = {}, set()
    for exercise in (exercise.id for exercise in manifest(lab).exercises):
        keep = set(given_names(stub_of(lab, exercise)))
        for number, source in enumerate(independent_answers(lab, exercise)):
            ways = WAYS[(number + len(exercise)) % len(WAYS)]
            author, copier = f"author_{number}", f"copier_{number}"
            answers.setdefault(author, {})[exercise] = source
            answers.setdefault(copier, {})[exercise] = disguised(source, ways, keep, number)
            if is_large(lab, exercise, source):
                truth.add((exercise, author, copier))
    for student, own in answers.items():
        hand_in(folder, lab, student, own)
    return truth


def test_planted_copies_are_found_among_independent_answers(tmp_path):
    """Over all labs: recall and precision are at least 0.95, and most exercises are large enough to be compared."""
    found, truth, small = set(), set(), 0
    for lab in LABS:
        folder = tmp_path / lab.slug
        truth |= {(lab.slug, *pair) for pair in planted(lab, folder)}
        findings = compare(lab, folder)
        assert not findings.faults
        small += len(findings.small)
        for pair in findings.pairs:
            assert not pair.second.owner.startswith("threeloops."), "no independent answer is like the library"
            if pair.second.is_of_class:
                found.add((lab.slug, pair.exercise, *sorted((pair.first.owner, pair.second.owner))))
        shutil.rmtree(folder)
    exercises = sum(len(manifest(lab).exercises) for lab in LABS)
    assert len(truth) > 300 and small < 0.1 * exercises
    recall, precision = len(found & truth) / len(truth), len(found & truth) / len(found)
    assert recall >= 0.95 and precision >= 0.95, (recall, precision, sorted(found - truth), sorted(truth - found))


@pytest.mark.parametrize("ways", WAYS, ids="+".join)
def test_a_disguise_is_seen_through(ways):
    lab = next(lab for lab in LABS if lab.name == "continuous_batching")
    for exercise in manifest(lab).exercises:
        given, stub = given_names(stub_of(lab, exercise.id)), stub_of(lab, exercise.id)
        start = fingerprint(stub, given)
        for number, source in enumerate(independent_answers(lab, exercise.id)):
            own = fingerprint(source, given).without(start)
            copied = fingerprint(disguised(source, ways, set(given), number), given).without(start)
            if own.size >= comparison._LEAST_PARTS:
                assert own.share_with(copied) >= 0.95


ANSWER = """\
def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    total, count = 0.0, 0
    for value in values:
        total = total + value * 1.0
        count = count + 1
    while total != total and count > 3:
        count = count - len(values[1:])
    return total / count
"""
OTHER = """\
def mean(values):
    from statistics import fmean
    if len(values) == 0:
        raise ValueError("values: expected some numbers")
    ordered = sorted(float(number) for number in values)
    middle = fmean(ordered[: len(ordered) // 2] + ordered[len(ordered) // 2 :])
    return min(max(middle, ordered[0]), ordered[-1])
"""


def pairs(findings):
    return {(pair.exercise, pair.first.owner, pair.second.owner) for pair in findings.pairs}


def test_answers_are_compared_with_each_other_and_with_earlier_terms(toy, tmp_path):
    now, before = tmp_path / "now", tmp_path / "2029"
    hand_in(now, toy, "ada", {"mean": ANSWER})
    hand_in(now, toy, "bob", {"mean": disguised(ANSWER, ALL, {"mean"}, 1)})
    hand_in(now, toy, "eve", {"mean": OTHER})
    hand_in(before, toy, "old", {"mean": disguised(OTHER, ALL, {"mean"}, 2)})
    hand_in(before, toy, "ann", {"mean": disguised(OTHER, ALL, {"mean"}, 3)})
    findings = compare(toy, now, [before])
    assert pairs(findings) == {
        ("mean", "ada", "bob"),
        ("mean", "eve", f"{before}: old"),
        ("mean", "eve", f"{before}: ann"),
    }
    assert findings.students == 3 and findings.small == ("rescale",)


def test_answers_are_compared_with_the_solution_right_answers_and_the_library(toy, tmp_path):
    path = REPOSITORY / "lib/threeloops/product/decode/sampling/draws.py"
    tree = ast.parse(path.read_text())
    library = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "_filtered")
    add_answers(toy, whole("right/mean__slowly", ANSWER))
    hand_in(tmp_path / "now", toy, "ada", {"mean": disguised(ANSWER, ALL, {"mean"}, 1)})
    hand_in(tmp_path / "now", toy, "bob", {"rescale": ast.unparse(library)})
    assert pairs(compare(toy, tmp_path / "now")) == {
        ("mean", "ada", "right/mean__slowly"),
        ("rescale", "bob", "threeloops.product.decode.sampling.draws._filtered"),
    }


def test_nobody_is_alike_for_the_stub_or_for_an_answer_of_a_line(toy, tmp_path):
    line = "def mean(values):\n    return sum(values) / len(values)\n"
    for student, answers in {"ada": {}, "bob": {}, "cy": {"mean": line}, "di": {"mean": line}}.items():
        hand_in(tmp_path / "class", toy, student, answers)
    findings = compare(toy, tmp_path / "class")
    assert not findings.pairs and findings.small == ("mean", "rescale")


@pytest.mark.parametrize(
    ("text", "told"),
    [("def mean(values:\n", "line 1: '(' was never closed"), ("x = " + "-" * 5000 + "1", ""), ("a\0b", "null bytes")],
    ids=["a syntax error", "too deep", "a null byte"],
)
def test_an_answer_that_is_not_python_is_named_and_the_others_are_compared(toy, tmp_path, text, told):
    for student, answer in {"ada": text, "bob": ANSWER, "cy": ANSWER}.items():
        hand_in(tmp_path / "class", toy, student, {"mean": answer})
    findings = compare(toy, tmp_path / "class")
    assert pairs(findings) == {("mean", "bob", "cy")}
    (fault,) = findings.faults
    assert fault.startswith("ada: an answer is not Python that can be compared: ") and told in fault


def test_a_notebook_that_cannot_be_read_is_named(toy, tmp_path):
    hand_in(tmp_path / "class", toy, "ada", {"mean": ANSWER})
    (tmp_path / "class/bob" / toy.slug).mkdir(parents=True)
    (tmp_path / "class/bob" / toy.slug / f"{toy.slug}.ipynb").write_text("{")
    (fault,) = compare(toy, tmp_path / "class").faults
    assert fault.startswith("bob: the file is not JSON")


def test_commands_of_ipython_do_not_count():
    assert fingerprint(f"%timeit 1\n!ls\n{ANSWER}", {"mean"}).parts == fingerprint(ANSWER, {"mean"}).parts


def test_the_page_shows_pairs_side_by_side_with_words_of_caution_and_no_markup_of_students(toy, tmp_path):
    answer = ANSWER + "evil = '<script>alert(1)</script>'\n"
    for student in ("ada", "bob"):
        hand_in(tmp_path / "class", toy, student, {"mean": answer})
    page = similar_page(toy, compare(toy, tmp_path / "class"))
    for words in ("does not show that anybody copied", "A person decides", "mean: ada and bob, 100%", "<mark>"):
        assert words in page
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "Too small to compare" in page and "rescale" in page


def test_the_command_writes_a_page_and_says_that_a_person_decides(toy, monkeypatch, tmp_path):
    for student in ("ada", "bob"):
        hand_in(toy.root / "submitted", toy, student, {"mean": ANSWER})
    hand_in(tmp_path / "2029", toy, "old", {"mean": ANSWER})
    monkeypatch.chdir(toy.root)
    words = ["class", "similar", "toy", "--earlier", str(tmp_path / "2029")]
    done = CliRunner().invoke(cli._app, words, env={"THREELOOPS_ROOT": str(toy.root)}, prog_name="threeloops")
    assert done.exit_code == 0, done.output
    assert "2 submissions: 1 pairs of answers are alike within the class" in done.output
    assert "A person has to look at the answers" in done.output
    assert "2029: old" in (toy.root / "class" / f"{toy.slug}_similar.html").read_text()
