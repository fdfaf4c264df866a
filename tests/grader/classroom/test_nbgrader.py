"""Stock nbgrader commands on this course: the same points as `threeloops grade`, and closed where nbgrader is open."""

import copy
import csv
import json
import shutil
from pathlib import Path

import nbformat
import pytest
from grading import REPOSITORY, nbgrader, sandbox_words
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.gradebook import feed
from threeloops_grader.course.course import submissions
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.release.release import release
from threeloops_grader.worklist.grade_class import grade_class
from toy_course import make_course


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course with three students, a cheat and a broken file, generated and autograded by stock commands."""
    lab = make_course(tmp_path_factory.mktemp("course"))
    root = lab.root
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    release([lab])
    made = {name: notebook for name, (notebook, _) in submissions(lab).items()}
    made["forger"] = _forged(made["untouched"])
    made["teller"] = _telling(made["reference"])
    made["splitter"] = _split(made["reference"])
    for student, notebook in made.items():
        folder = root / "submitted" / student / lab.slug
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / f"{lab.slug}.ipynb")
    broken = root / "submitted" / "broken" / lab.slug
    broken.mkdir(parents=True)
    (broken / f"{lab.slug}.ipynb").write_text("{ not json")
    generated = nbgrader(root, "generate_assignment", lab.slug, "--force")
    assert generated.returncode == 0, generated.stderr
    autograded = nbgrader(root, "autograde", lab.slug, *sandbox_words())
    return lab, autograded


@pytest.fixture(scope="module")
def graded(course):
    """The same submissions on the other route."""
    lab, _ = course
    return grade_class(lab.root / "submitted", lab, Options("none"))


@pytest.fixture
def ours(graded):
    """A copy of it, to be changed."""
    return copy.deepcopy(graded)


def _telling(reference):
    """Right answers; the first tells what it was given, and so does a later cell. A link in the reflection runs."""
    telling = nbformat.from_dict(reference)
    answer = next(c for c in telling.cells if c.id == "mean")
    answer.source = "SEEN = []\n" + answer.source.replace("if not", "SEEN.append(values); print(SEEN)\n    if not")
    place = next(i for i, c in enumerate(telling.cells) if c.id == "mean_test")
    telling.cells.insert(place + 1, nbformat.v4.new_code_cell("print(SEEN)\nraise ValueError(SEEN)"))
    next(c for c in telling.cells if c.id == "reflection").source = "[the plot](javascript:alert(1)) <b>bold</b>"
    return telling


def _split(reference):
    """Right answers: one cut in its function's body as JupyterLab does, and a copy of the other at the end."""
    halves = nbformat.from_dict(reference)
    at = next(n for n, cell in enumerate(halves.cells) if cell.id == "mean")
    first, second = copy.deepcopy(halves.cells[at]), halves.cells[at]
    head, body = second.source.split("\n    return")
    first.source, second.source, first.id = head, f"    return{body}", "first-half"
    halves.cells.insert(at, first)
    old = copy.deepcopy(next(cell for cell in halves.cells if cell.id == "rescale"))
    old.source, old.id = "def rescale(values, top):\n    return 'an old attempt'", "a-copy"
    halves.cells.append(old)
    return halves


def _forged(untouched):
    """No answers; test cells deleted, one replaced by a locked cell of the student's own, one cell's schema too old."""
    forged = nbformat.from_dict(untouched)
    forged.cells = [c for c in forged.cells if not c.id.endswith("_test")]
    cell = nbformat.v4.new_code_cell("100.0", id="mean_test")
    cell.metadata.nbgrader = {
        "grade": True,
        "grade_id": "mean_test",
        "locked": True,
        "points": 1000,
        "schema_version": 3,
        "solution": False,
        "task": False,
    }
    forged.cells.append(cell)
    next(c for c in forged.cells if c.id == "rescale").metadata.nbgrader.schema_version = 1
    return forged


def scores(root: Path) -> dict[str, float]:
    exported = nbgrader(root, "export", "--to", "grades.csv")
    assert exported.returncode == 0, exported.stderr
    with (root / "grades.csv").open() as file:
        return {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}


def test_autograde_gives_the_same_points_as_threeloops_grade(course, ours):
    lab, _ = course
    mine = {r.student: r.score for r in ours.records}
    theirs = scores(lab.root)
    assert {s: mine[s] for s in theirs if s != "broken"} == {s: v for s, v in theirs.items() if s != "broken"}
    assert (theirs["reference"], theirs["half_done"], theirs["untouched"]) == (100.0, 40.0, 0.0)


def test_an_answer_that_was_split_or_copied_counts_alike_everywhere_and_all_of_it_stays_visible(course, graded):
    lab, autograded = course
    assert scores(lab.root)["splitter"] == 100.0
    record = next(record for record in graded.records if record.student == "splitter")
    checked = grade_notebook(_split(submissions(lab)["reference"][0]), lab, "you", Options("none", visible=True))
    assert record.score == checked.score == 100.0
    assert set(record.notes) <= set(checked.notes), "the visible checks also find the hidden tests in this reference"
    path = lab.root / "autograded" / "splitter" / lab.slug / f"{lab.slug}.ipynb"
    texts = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    nbgrader(lab.root, "generate_feedback", lab.slug, "--student=splitter", "--force")
    page = (lab.root / "feedback" / "splitter" / lab.slug / f"{lab.slug}.html").read_text()
    for note in ("mean: 2 cells have this answer's name", "rescale: 2 cells have this answer's name"):
        assert note in "\n".join(record.notes)
        assert f"splitter: {note}" in autograded.stderr
        assert note in texts and note.replace("'", "&#39;") in page.replace("&#x27;", "&#39;").replace("'", "&#39;")
    assert "an old attempt" in texts and "an old attempt" in page


def test_the_validate_button_takes_a_split_answer(course, tmp_path):
    """nbgrader's own check ends with "Duplicate grade id"."""
    lab, _ = course
    notebook = submissions(lab)["reference"][0]
    at = next(n for n, cell in enumerate(notebook.cells) if cell.id == "rescale")
    first, second = copy.deepcopy(notebook.cells[at]), notebook.cells[at]
    first.source, second.source, first.id = "TINY = 0.0", second.source.removeprefix("TINY = 0.0").strip(), "first"
    notebook.cells.insert(at, first)
    shutil.copytree(lab.data, tmp_path / "data")
    nbformat.write(notebook, tmp_path / "split.ipynb")
    validated = nbgrader(lab.root, "validate", str(tmp_path / "split.ipynb"))
    assert "Success! Your notebook passes all the tests." in validated.stdout, validated.stderr


def test_a_forged_test_cell_earns_nothing_and_is_noted(course):
    lab, autograded = course
    assert scores(lab.root)["forger"] == 0.0
    assert "forger: mean_test: this test cell is not that of the installed lab" in autograded.stderr


def test_a_broken_file_stops_nobody(course):
    lab, autograded = course
    assert scores(lab.root).get("broken", 0.0) == 0.0
    assert "broken" in autograded.stderr
    assert (lab.root / "autograded" / "reference" / lab.slug / f"{lab.slug}.ipynb").is_file()


def test_every_graded_cell_holds_exactly_one_result_of_the_graders(course):
    lab, _ = course
    for student in ("reference", "half_done", "untouched", "forger"):
        notebook = nbformat.read(lab.root / "autograded" / student / lab.slug / f"{lab.slug}.ipynb", as_version=4)
        for cell in notebook.cells:
            if cell.metadata.get("nbgrader", {}).get("grade"):
                kinds = [o.output_type for o in cell.outputs if o.output_type != "stream"]
                assert len(kinds) == 1
                assert kinds[0] in ("error", "execute_result")


def test_no_execute_is_closed(course):
    """nbgrader gives a test cell without output full marks; here it carries an error until it is executed."""
    lab, _ = course
    nbgrader(lab.root, "autograde", lab.slug, "--student=reference", "--force", "--no-execute")
    closed = scores(lab.root)["reference"]
    nbgrader(lab.root, "autograde", lab.slug, "--student=reference", "--force", *sandbox_words())
    assert (closed, scores(lab.root)["reference"]) == (0.0, 100.0)


def test_a_symbolic_link_in_a_submission_is_not_followed(course, tmp_path):
    lab, _ = course
    secret = tmp_path / "secret.txt"
    secret.write_text("the answers")
    folder = lab.root / "submitted" / "linker" / lab.slug
    folder.mkdir(parents=True)
    nbformat.write(submissions(lab)["reference"][0], folder / f"{lab.slug}.ipynb")
    (folder / "notes.txt").symlink_to(secret)
    done = nbgrader(lab.root, "autograde", lab.slug, "--student=linker", *sandbox_words())
    shutil.rmtree(lab.root / "submitted" / "linker")
    assert "symbolic link" in done.stderr
    assert not (lab.root / "autograded" / "linker" / lab.slug).exists()


def test_feedback_shows_neither_hidden_tests_nor_scripts(course):
    lab, _ = course
    generated = nbgrader(lab.root, "generate_feedback", lab.slug, "--force")
    assert generated.returncode == 0, generated.stderr
    page = (lab.root / "feedback" / "half_done" / lab.slug / f"{lab.slug}.html").read_text()
    assert "mean of the samples" in page
    assert "a median is not a mean" not in page
    assert "HIDDEN TESTS" not in page
    assert "default-src 'none'" in page
    assert "<script" not in page


def test_feedback_repeats_no_input_of_a_hidden_test_and_has_no_link_that_runs(course):
    lab, _ = course
    nbgrader(lab.root, "generate_feedback", lab.slug, "--force", "--student=teller")
    page = (lab.root / "feedback" / "teller" / lab.slug / f"{lab.slug}.html").read_text()
    assert scores(lab.root)["teller"] == 100.0
    assert page.count("it may repeat the inputs of hidden tests") >= 2
    assert "345584192064786" not in page  # the number that `check.rng(1)` draws
    assert "the plot (javascript:alert(1)) &lt;b&gt;bold&lt;/b&gt;" in page


def test_a_file_that_the_instructors_server_could_run_is_not_in_the_graded_copy(course):
    """Formgrader serves `autograded/` from its own address and can be led to read a configuration in it."""
    lab, _ = course
    folder = lab.root / "submitted" / "extra" / lab.slug
    (folder / "data").mkdir(parents=True)
    nbformat.write(submissions(lab)["reference"][0], folder / f"{lab.slug}.ipynb")
    for name in ("page.html", "nbgrader_config.py", "data/drawing.svg", "data/samples.txt"):
        (folder / name).write_text("<script>alert(1)</script>")
    done = nbgrader(lab.root, "autograde", lab.slug, "--student=extra", *sandbox_words())
    shutil.rmtree(lab.root / "submitted" / "extra")
    graded = lab.root / "autograded" / "extra" / lab.slug
    found = {p.relative_to(graded).as_posix() for p in graded.rglob("*") if p.is_file()}
    assert f"{lab.slug}.ipynb" in found, done.stderr
    assert not found & {"page.html", "nbgrader_config.py", "data/drawing.svg"}
    assert "script" not in "".join(p.read_text() for p in graded.rglob("*.txt"))
    for left in ("page.html", "nbgrader_config.py", "data/drawing.svg"):
        assert f"extra: {left} is not graded and stays in submitted/" in done.stderr
    assert "samples.txt is not graded" not in done.stderr, "the lab's own"
    assert scores(lab.root)["extra"] == 100.0


def test_threeloops_grade_feeds_the_same_gradebook(course, ours):
    lab, _ = course
    for record in ours.records:
        for test in record.tests:
            test.score = test.max_score / 2
    database = f"sqlite:///{lab.root / 'gradebook.db'}"
    assert feed(ours, lab, database) == len(ours.records)
    assert scores(lab.root)["reference"] == 50.0


def test_a_gradebook_of_another_version_is_left_alone(course, ours):
    lab, _ = course
    ours.records[0].tests[0].name = "median_test"
    before = scores(lab.root)
    with pytest.raises(LabError, match="another version of lab"):
        feed(ours, lab, f"sqlite:///{lab.root / 'gradebook.db'}")
    assert scores(lab.root) == before


def test_the_record_is_json_that_gradescope_reads(ours):
    from threeloops_grader.grading.records import gradescope, to_json

    exported = json.loads(to_json(gradescope(next(r for r in ours.records if r.student == "half_done"))))
    assert exported["score"] == 40.0
    assert [t["status"] for t in exported["tests"]] == ["passed", "failed", "failed"]
