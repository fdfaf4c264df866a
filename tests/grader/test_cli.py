"""The command line as its users meet it: right answers, wrong words, and one sentence for each fault."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from threeloops_grader import cli
from threeloops_grader.authoring.answers import wrong_answers
from threeloops_grader.course.course import submissions
from threeloops_grader.pages.pages import remote_references
from threeloops_grader.release.release import release
from toy_course import make_course
from typer.testing import CliRunner, Result

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    lab = make_course(tmp_path_factory.mktemp("course"))
    release([lab])
    return lab


def threeloops(root: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a shell starts it, for what depends on that: exit codes, and what is in the environment."""
    course = {"THREELOOPS_ROOT": str(root), "THREELOOPS_HOME": str(root / ".home")}
    return subprocess.run(
        [sys.executable, "-m", "threeloops_grader.cli", *words],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=root,
        env={**os.environ, **course, "COLUMNS": "200", "NO_COLOR": "1", **environment},
        check=False,
    )


@pytest.fixture
def command(toy, monkeypatch):
    """The same command in this process, which has imported what a process of its own takes over a second to import."""

    def call(*words: str, folder: Path = toy.root, course: str = str(toy.root)) -> Result:
        monkeypatch.chdir(folder)
        where = {"THREELOOPS_ROOT": course, "THREELOOPS_HOME": str(toy.root / ".home")}
        return CliRunner().invoke(cli._app, words, env=where, prog_name="threeloops")

    return call


@pytest.fixture
def classroom(toy, tmp_path):
    """Three students: one has everything, one half, one nothing."""
    for student, kind in (("ada", "reference"), ("ben", "half_done"), ("cleo", "untouched")):
        folder = tmp_path / "class" / student / toy.slug
        folder.mkdir(parents=True)
        nbformat.write(submissions(toy)[kind][0], folder / f"{toy.slug}.ipynb")
    return tmp_path / "class"


def test_help_teaches(toy):
    done = threeloops(toy.root, "--help")
    assert done.returncode == 0
    for command in "doctor start lab check status reset update run grade release course evidence".split():
        assert command in done.stdout
    assert "THREELOOPS_HOME" in done.stdout and "$XDG_STATE_HOME/threeloops" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["start", "nolab"], "there is no lab 'nolab'; the labs here are 90_toy"),
        (["grade", "--lab", "toy", "--submissions", "nowhere"], "nowhere is not a folder; expected"),
        (["grade", "--lab", "toy"], "Missing option '--submissions'"),
        (["grade", "--lab", "toy", "--submissions", ".", "--jobs", "0"], "--jobs"),
        (["check", "nothing.ipynb"], "no file nothing.ipynb"),
        (["check", "nothing"], "there is no lab 'nothing'"),
        (["check", "solutions"], "solutions is a folder; it holds no notebook"),
        (["check", "labs/90_toy"], "name the notebook in it: labs/90_toy/90_toy.ipynb"),
        (["check", "solutions/90_toy/data/MANIFEST.json"], "the file holds a JSON list, not a notebook"),
        (["reset", "median"], "no lab has an exercise 'median'"),
        (["reset", "median", "--lab", "90"], "lab 90_toy has no exercise 'median'; its exercises are mean, rescale"),
        (["bogus"], "No such command 'bogus'"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_code_2(command, words, sentence):
    done = command(*words)
    assert done.exit_code == 2
    assert sentence in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stdout + done.stderr


def test_grade_says_who_fell_short_and_writes_json_a_page_a_table_and_gradescopes_form(toy, classroom, tmp_path):
    out = tmp_path / "out"
    (classroom / "=1+1").mkdir()
    words = ["grade", "--lab", "90", "--submissions", str(classroom), "--sandbox", "none"]
    words += ["--json", str(out / "scores.json"), "--gradescope", str(out / "scope")]
    done = threeloops(toy.root, *words, "--html", str(out / "class.html"), "--csv", str(out / "class.csv"))
    assert done.returncode == 1, done.stderr
    assert "No sandbox" in done.stdout
    data = json.loads((out / "scores.json").read_text())
    assert (data["lab"], data["sandbox"]) == (toy.slug, "none")
    assert [(r["student"], r["score"], r["status"]) for r in data["records"]] == [
        ("=1+1", 0.0, "failed"),
        ("ada", 100.0, "graded"),
        ("ben", 40.0, "graded"),
        ("cleo", 0.0, "graded"),
    ]
    fields = {"student", "score", "max_score", "status", "seconds", "verified_on", "reflection", "notes", "tests"}
    assert all(set(r) == fields for r in data["records"])
    parts = {"name", "score", "max_score", "output", "in_hidden"}
    assert [set(t) for t in data["records"][1]["tests"]] == [parts] * 3
    page = (out / "class.html").read_text()
    assert remote_references(page) == []
    assert "rescale_test" not in page
    assert "40 / 100" in page
    assert "is not written yet" in page
    assert "'=1+1,90_toy,0.0" in (out / "class.csv").read_text()
    assert json.loads((out / "scope" / "ben.json").read_text())["score"] == 40.0


def test_a_full_class_exits_0_and_resumes_and_a_course_may_be_named_relative_to_where_one_is(toy, command):
    """Grading works in other folders: what was a relative path there would be another, or none."""
    folder = toy.root / "submitted" / "ada" / toy.slug
    folder.mkdir(parents=True)
    nbformat.write(submissions(toy)["reference"][0], folder / f"{toy.slug}.ipynb")
    words = ["grade", "--lab", "toy", "--submissions", "submitted", "--sandbox", "none"]
    try:
        assert threeloops(toy.root, *words).returncode == 0
        again = command(*words)
        fresh = command(*words, "--fresh", course=".")
    finally:
        shutil.rmtree(toy.root / "submitted")
    assert (again.exit_code, "graded before" in again.stdout) == (0, True)
    assert (fresh.exit_code, "graded before" in fresh.stdout) == (0, False), fresh.output


def test_only_grades_one_exercise(classroom, command, tmp_path):
    out = tmp_path / "one.json"
    shutil.rmtree(classroom / "ada")
    words = ["--submissions", str(classroom), "--only", "mean", "--json", str(out), "--sandbox", "none"]
    command("grade", "--lab", "toy", *words)
    records = json.loads(out.read_text())["records"]
    assert [(r["score"], r["max_score"]) for r in records] == [(40.0, 40.0), (0.0, 40.0)]


def test_only_gives_the_points_of_a_whole_grading(toy, command, tmp_path):
    """An answer may call an earlier one, and a name that a later cell defines does not exist yet."""
    calls = "TINY = 0.0\n\n\ndef rescale(values, top):\n    assert mean([1.0, 3.0]) == 2.0 and LATER == 0\n"
    calls += "    peak = np.abs(values).max(initial=0.0)\n    return values * (top / peak) if peak else values.copy()\n"
    notebook = toy.answered({"rescale": calls})
    for text in ("LATER = 1", "LATER = 0"):
        notebook.cells.insert(0, nbformat.v4.new_code_cell(text))
    notebook.cells.insert(1, notebook.cells.pop(0))  # LATER = 0 counts
    notebook.cells.append(nbformat.v4.new_code_cell("LATER = 2"))
    folder = tmp_path / "class" / "ada" / toy.slug
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / f"{toy.slug}.ipynb")
    words = ["grade", "--lab", "toy", "--submissions", str(tmp_path / "class"), "--sandbox", "none", "--json"]
    points = {}
    for only in ([], ["--only", "mean"], ["--only", "rescale"]):
        command(*words, str(tmp_path / "one.json"), *only)
        (record,) = json.loads((tmp_path / "one.json").read_text())["records"]
        points |= {(test["name"], bool(only)): test["score"] for test in record["tests"]}
    for test in ("mean_test", "rescale_test_values", "rescale_test_zeros"):
        assert points[test, True] == points[test, False] > 0


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            "def mean(values):\n    return sum(values / len(values)\n",
            ["SyntaxError: line 2: a bracket or a text is not closed\n    return sum(values / len(values)\n"],
        ),
        (
            "def mean(values):\n    return sum(values) / / len(values)\n",
            ["SyntaxError: line 2: invalid syntax\n    return sum(values) / / len(values)\n" + " " * 25 + "^"],
        ),
        ("def mean(values):\nreturn 1\n", ["IndentationError: line 2: expected an indented block", "return 1"]),
        ("raise_here = 1 / 0\ndef mean(values):\n    return 1\n", ["ZeroDivisionError: division by zero"]),
    ],
    ids=["a bracket", "syntax", "indentation", "another error"],
)
def test_an_answer_whose_cell_fails_is_told_how_instead_of_a_missing_name(toy, command, tmp_path, answer, told):
    folder = tmp_path / "class" / "ada" / toy.slug
    folder.mkdir(parents=True)
    nbformat.write(toy.answered({"mean": answer}), folder / f"{toy.slug}.ipynb")
    words = ["--submissions", str(tmp_path / "class"), "--sandbox", "none", "--json", str(tmp_path / "one.json")]
    command("grade", "--lab", "toy", *words)
    (record,) = json.loads((tmp_path / "one.json").read_text())["records"]
    output = next(test["output"] for test in record["tests"] if test["name"] == "mean_test")
    assert output.startswith("the cell of the answer failed: ") and "is not defined" not in output
    for words in told:
        assert words in output
    assert sum(test["score"] for test in record["tests"]) == 60, "the other exercise is graded as before"


def test_only_names_the_exercises_when_there_is_none_of_that_name(classroom, command):
    done = command("grade", "--lab", "toy", "--submissions", str(classroom), "--only", "median")
    assert done.exit_code == 2
    assert "its exercises are mean, rescale" in done.stderr


def test_without_bubblewrap_grade_refuses_and_names_the_choice(toy, classroom, tmp_path):
    """`auto` never falls back: no sandbox is a choice, not an accident."""
    (tmp_path / "bin").mkdir()
    done = threeloops(toy.root, "grade", "--lab", "toy", "--submissions", str(classroom), PATH=str(tmp_path / "bin"))
    assert done.returncode == 2
    assert "bubblewrap is not installed" in done.stderr
    assert "--sandbox none" in done.stderr


def test_a_student_starts_checks_and_updates(toy, command):
    first = command("start", "90")
    assert (first.exit_code, str(toy.work) in first.stdout) == (0, True)
    again = command("start", "toy")
    assert (again.exit_code, f"{toy.work} and was not touched" in again.stdout) == (0, True)
    mine = str(toy.work)
    untouched = command("check", mine)
    assert (untouched.exit_code, untouched.stdout.count("✗")) == (1, 3)
    nbformat.write(submissions(toy)["half_done"][0], toy.work)
    half = command("check", mine)
    assert "✓ mean" in half.stdout
    assert "✗ rescale (values)" in half.stdout and "✗ rescale (zeros)" in half.stdout
    assert command("update", "90").exit_code == 0
    assert "sum(values) / len(values)" in toy.work.read_text()


def test_a_student_tries_the_hidden_tests_too(toy, command):
    """A mistake that only hidden tests see passes `check`, which says so, and loses its part of `check --full`."""
    release([toy])
    notebook = toy.master()
    wrong = next(answer for answer in wrong_answers(toy) if answer.name == "rescale__ignores_the_sign")
    next(cell for cell in notebook.cells if cell.id == "rescale").source = wrong.text
    toy.work.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, toy.work)
    visible = command("check", "toy")
    assert (visible.exit_code, "check toy --full` tries the hidden ones too" in visible.stdout) == (0, True)
    full = command("check", "toy", "--full")
    assert full.exit_code == 1
    for line in ("✓ mean  40 / 40", "✗ rescale (values)  0 / 45", "✓ rescale (zeros)  15 / 15", "55 of 100 points"):
        assert line in full.stdout
    assert "the magnitude counts, not the sign" in full.stdout


def test_check_of_a_file_that_is_no_notebook(toy, tmp_path):
    broken = tmp_path / "90_toy.ipynb"
    broken.write_text("{ not json")
    done = threeloops(toy.root, "check", str(broken))
    assert done.returncode == 2
    assert "is not JSON" in done.stderr


def test_release_check_notices_an_edited_lab(toy, command):
    assert command("release", "--check").exit_code == 0
    text = toy.released.read_text()
    toy.released.write_text(text.replace("arithmetic mean", "harmonic mean"))
    done = command("release", "--check")
    toy.released.write_text(text)
    assert (done.exit_code, "90_toy" in done.stdout) == (1, True)


def test_a_full_disk_leaves_no_half_written_report(toy, classroom, tmp_path):
    """The limit stands for the disk: the report does not fit, the old one stays, the sentence says why."""
    out = tmp_path / "scores.json"
    out.write_text("old")
    script = (
        "import os, sys; from threeloops_grader import cli\n"
        "def full(fd): raise OSError(28, 'No space left on device')\n"
        "os.fsync = full\n"
        "sys.argv[0] = 'threeloops'; cli.main()\n"
    )
    words = ["grade", "--lab", "toy", "--submissions", str(classroom), "--json", str(out), "--sandbox", "none"]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "THREELOOPS_ROOT": str(toy.root)},
        check=False,
    )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert out.read_text() == "old"
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_command_compiles_no_grammar_at_its_start():
    """jsonschema would have `lark` compile one of internationalised addresses at its import, for two seconds."""
    modules = "threeloops_grader.cli, threeloops_grader.release.student_copies, jsonschema, sys"
    code = f"import {modules}; print(sorted({{'lark', 'torch'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    assert done.stdout.strip() == "[]"


def test_the_two_sides_of_a_lab_without_tensors_import_no_torch():
    """Its import takes two seconds, on each side."""
    sides = "threeloops_grader.processes.student_process, threeloops_grader.processes.grader_process"
    code = f"import {sides}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--json", "folder"], "not an ordinary file (folder); name another place"),
        (["--html", "pipe"], "not an ordinary file (pipe); name another place"),
        (["--csv", "file/scores.csv"], "(file); name another place"),
        (["--gradescope", "file"], "(file); name another place"),
        (["--json", "/proc/none/scores.json"], "(/proc/none); name another place"),
        (["--gradebook", "grades"], "the gradebook grades cannot be used (Could not parse"),
        (["--gradebook", "sqlite:////proc/none/x.db"], "such as sqlite:///gradebook.db. Nothing was written"),
    ],
)
def test_an_export_that_cannot_be_written_is_one_sentence(toy, command, tmp_path, words, sentence):
    student = tmp_path / "submitted" / "ada" / toy.slug
    student.mkdir(parents=True)
    (student / f"{toy.slug}.ipynb").write_text("no notebook: nothing is executed")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    grade = ["grade", "--lab", "toy", "--submissions", "submitted", "--sandbox", "none"]
    done = command(*grade, *words, folder=tmp_path)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
