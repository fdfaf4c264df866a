"""What travels as a file: the student's zip, downloads of other platforms, the bundle, and Gradescope's autograder."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest
from grading import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st
from threeloops_grader.authoring.labs import Lab, LabError, all_labs, course_root, find_lab
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.classroom.handout.archive import members, write_zip
from threeloops_grader.classroom.handout.autograder import write_autograder
from threeloops_grader.classroom.handout.bundle import write_bundle
from threeloops_grader.classroom.handout.downloads import read_download, store
from threeloops_grader.classroom.handout.submission import write_submission
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.course.course import submissions
from threeloops_grader.learner.commands import check
from threeloops_grader.learner.progress import standing
from threeloops_grader.release.release import release
from threeloops_grader.release.student_copies import start
from threeloops_grader.submissions.submitted import BadSubmission

CLASS = [
    Student("ada", "Ada", "Lovelace", canvas_id="7"),
    Student("zoë", "Zoë", "Ünal O'Neil"),
    Student("twin1", "Ann", "Lee"),
    Student("twin2", "Ann", "Lee"),
]


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    from toy_course import make_course

    lab = make_course(tmp_path_factory.mktemp("course"))
    release([lab])
    return lab


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_a_students_zip_holds_the_notebook_and_says_what_is_missing(released):
    with pytest.raises(LabError, match="threeloops start"):
        write_submission(released)
    start(released)
    path, notes = write_submission(released)
    assert notes == []
    assert dict(members(path, 1 << 20)) == {f"{released.slug}.ipynb": released.work.read_bytes()}
    whole = released.work.read_bytes()
    for damaged in (b"{", whole.replace(released.slug.encode(), b"01_roofline")):
        released.work.write_bytes(damaged)
        with pytest.raises(LabError, match="cannot be handed in"):
            write_submission(released)
    released.work.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("lovelaceada_7_4711_90_toy.zip", "ada"),
        ("lovelaceada_LATE_7_4711_90_toy-1.zip", "ada"),
        ("whoever_7_4711_90_toy.ipynb", "ada"),
        ("Zoë Ünal O'Neil_99_assignsubmission_file/90_toy.zip", "zoë"),
        ("Zoe\u0308 U\u0308nal O'Neil_99_assignsubmission_file_90_toy.ipynb", "zoë"),
        ("ada/90_toy/90_toy.ipynb", "ada"),
        ("Zoe\u0308.zip", "zoë"),
        ("twin2_90_toy.zip", "twin2"),
        ("twin2_104_903_90_toy.zip", "twin2"),
    ],
)
def test_whose_file_it_is_stands_in_its_name(released, tmp_path, name, student):
    content = b"{}" if name.endswith(".ipynb") else zipped(**{f"{released.slug}.ipynb": b"{}"})
    write_zip(tmp_path / "download.zip", {name: content})
    found = read_download(tmp_path / "download.zip", released, CLASS)
    assert (found.notebooks, found.faults) == ({student: b"{}"}, [])


def test_what_cannot_be_told_is_named_and_the_rest_is_collected(released, tmp_path):
    wanted = f"{released.slug}.ipynb"
    files = {
        "Ann Lee_1_assignsubmission_file/90_toy.ipynb": b"{}",
        "mallory/90_toy.ipynb": b"{}",
        "../../etc/ada/90_toy.zip": zipped(**{wanted: b"{1}"}),
        "twin1.zip": b"no zip",
        "twin2.zip": zipped(**{wanted: b"{4}"}),
        "zoë/90_toy.ipynb": b"{2}",
        "zoë/again/90_toy.ipynb": b"{3}",
    }
    write_zip(tmp_path / "download.zip", files)
    found = read_download(tmp_path / "download.zip", released, CLASS)
    assert found.notebooks == {"ada": b"{1}", "twin2": b"{4}"}
    said = "\n".join(found.faults)
    for fault in ("twin1, twin2 all fit", "nobody on the roster fits", "cannot be read", "none was stored"):
        assert fault in said
    assert store(found, released, tmp_path / "submitted", datetime(2030, 1, 31, 12, tzinfo=UTC)) == 2
    assert store(found, released, tmp_path / "submitted", None) == 0, "nothing is new"
    folder = tmp_path / "submitted" / "ada" / released.slug
    assert (folder / "timestamp.txt").read_text() == "2030-01-31 12:00:00 UTC"
    assert store(found, released, tmp_path / "submitted", datetime(2030, 2, 1, 12, tzinfo=UTC)) == 2, "the time is"
    assert (folder / "timestamp.txt").read_text() == "2030-02-01 12:00:00 UTC"
    assert sorted(p.name for p in (tmp_path / "submitted").iterdir()) == ["ada", "twin2"]


def test_a_zip_that_unpacks_to_too_much_is_refused(tmp_path):
    write_zip(tmp_path / "bomb.zip", {"a": bytes(2 << 20)})
    with pytest.raises(BadSubmission, match="unpacks to more than 1 MiB"):
        list(members(tmp_path / "bomb.zip", 1 << 20))


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_a_files_date_depends_on_its_content_alone_and_has_passed(one, other):
    with tempfile.TemporaryDirectory() as folder:
        written = []
        for number, files in enumerate(({"a": one, "b": other}, {"b": other, "a": one})):
            path = Path(folder) / f"{number}.zip"
            write_zip(path, files)
            written.append(path.read_bytes())
    assert written[0] == written[1]
    with zipfile.ZipFile(io.BytesIO(written[0])) as archive:
        dates = [info.date_time for info in archive.infolist()]
    assert (dates[0] == dates[1]) == (one == other)
    assert all((1990, 1, 1) <= date < (2020, 1, 1) for date in dates)


def test_python_runs_the_new_file_of_a_later_bundle_also_where_its_size_is_the_old_ones(tmp_path):
    for answer in (b"6 * 7", b"7 * 9"):
        write_zip(tmp_path / "bundle.zip", {"known.py": b"print(" + answer + b")\n"})
        with zipfile.ZipFile(tmp_path / "bundle.zip") as archive:
            (info,) = archive.infolist()
            archive.extract(info, tmp_path)
        stamp = datetime(*info.date_time).timestamp()  # as `unzip` does; Python leaves the time of unpacking
        os.utime(tmp_path / "known.py", (stamp, stamp))
        words = [sys.executable, "-c", "import known"]
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
        assert done.stdout == f"{eval(answer)}\n"


@pytest.fixture(scope="module")
def in_repository():
    """The smallest lab of this repository: a bundle is made of a whole course."""
    return find_lab("01", REPOSITORY)


def test_a_bundle_holds_no_answer_and_works_as_a_course(in_repository, tmp_path, monkeypatch):
    write_bundle(tmp_path / "bundle.zip", [in_repository])
    with zipfile.ZipFile(tmp_path / "bundle.zip") as archive:
        names = archive.namelist()
        archive.extractall(tmp_path)
    root = tmp_path / "three_loops"
    assert "three_loops/AGENTS.md" in names, "assistants are asked to hint"
    assert not [n for n in names if "solutions/" in n or "answers.md" in n or "/tests/" in n]
    notebook = nbformat.read(root / f"labs/{in_repository.slug}/{in_repository.slug}.ipynb", as_version=4)
    assert not [c.id for c in notebook.cells if "HIDDEN TESTS" in c.source or "BEGIN SOLUTION" in c.source]
    readme = (root / "README.md").read_text()
    exchanged = ["submit 01 --exchange", "nbgrader fetch_feedback 01_roofline", "export THREELOOPS_EXCHANGE="]
    for said in ["make lab LAB=01 ", "threeloops check 01 ", "threeloops submit 01 ", *exchanged]:
        assert said in readme
    lab = find_lab("01", root)
    assert all_labs(root) == [Lab(in_repository.slug, root)]
    assert start(lab) and lab.work.is_file()
    assert write_submission(lab)[0].name == "01_roofline.zip"
    with monkeypatch.context() as patch:
        patch.setenv("THREELOOPS_ROOT", str(root))
        with pytest.raises(LabError) as refused:
            check("01", full=True)
    for said in ("three_loops has no solutions/", "--full needs the hidden tests", "check 01`", "submit 01`"):
        assert said in str(refused.value)
    hand_in = tmp_path / "submissions" / "ada" / lab.slug / f"{lab.slug}.ipynb"
    hand_in.parent.mkdir(parents=True)
    hand_in.write_bytes(lab.work.read_bytes())
    grade = f"grade --lab 01 --submissions {tmp_path / 'submissions'}"
    of_instructors = ("class release 01", "class grade 01", "class gradescope 01", "class similar 01")
    of_authors = ("release", "mutants 01", "course", "test 01", "leaks 01", "new 33_mine")
    for command in (*of_authors, grade, *of_instructors):
        words = [sys.executable, "-m", "threeloops_grader.cli", *command.split()]
        done = subprocess.run(words, env={**os.environ, "THREELOOPS_ROOT": str(root)}, capture_output=True, text=True)
        assert done.returncode == 2 and not (root / "solutions").exists()
        assert "has no solutions/, as in a student bundle or a wheel: run this" in " ".join(done.stderr.split()), (
            command
        )
    ours, theirs = manifest(in_repository), manifest(lab, visible=True)
    assert theirs.exercises == ours.exercises
    assert standing(lab, set()).minutes_left == in_repository.minutes > 0
    assert set(theirs.exports) <= set(ours.exports)  # helpers of the model answers are not there


def test_the_course_is_the_one_around_the_working_directory(in_repository, tmp_path, monkeypatch):
    """`threeloops` of the instructor's environment, which lies in a course of its own, called in a student's bundle."""
    write_bundle(tmp_path / "bundle.zip", [in_repository])
    with zipfile.ZipFile(tmp_path / "bundle.zip") as archive:
        archive.extractall(tmp_path)
    bundle, below = tmp_path / "three_loops", tmp_path / "three_loops" / "work" / "notes"
    below.mkdir(parents=True)
    monkeypatch.delenv("THREELOOPS_ROOT", raising=False)
    for here, course in ((bundle, bundle), (below, bundle), (tmp_path, REPOSITORY), (REPOSITORY / "lib", REPOSITORY)):
        monkeypatch.chdir(here)
        assert course_root() == course, here
    hostile = bundle / "submitted" / "eve" / "01_roofline"
    (hostile / "solutions").mkdir(parents=True)
    (hostile / "nbgrader_config.py").touch()
    monkeypatch.chdir(hostile)
    assert course_root() == bundle, "a submission became the course that grades it"
    monkeypatch.setenv("THREELOOPS_ROOT", str(tmp_path))
    assert course_root() == tmp_path


def test_a_bundle_with_an_answer_in_it_is_not_written(released, tmp_path):
    leak = released.released.parent / "notes.ipynb"
    nbformat.write(released.master(), leak)
    try:
        with pytest.raises(LabError, match="given out with answers"):
            write_bundle(tmp_path / "bundle.zip", [released])
        assert not (tmp_path / "bundle.zip").exists()
    finally:
        leak.unlink()


@pytest.fixture(scope="module")
def autograder(released, tmp_path_factory):
    """The autograder as Gradescope unpacks it, with its paths in a temporary folder."""
    root = tmp_path_factory.mktemp("autograder")
    for folder in ("lib/threeloops", "grader", "scripts", "pyproject.toml"):  # the toy course has no harness of its own
        (released.root / folder).parent.mkdir(exist_ok=True)
        (released.root / folder).symlink_to(REPOSITORY / folder)
    write_autograder(root / "zip.zip", released)
    for folder in ("lib/threeloops", "grader", "scripts", "pyproject.toml"):
        (released.root / folder).unlink()
    with zipfile.ZipFile(root / "zip.zip") as archive:
        archive.extractall(root / "source")
        modes = {name: archive.getinfo(name).external_attr >> 16 & 0o777 for name in ("setup.sh", "run_autograder")}
    assert set(modes.values()) == {0o755}
    return root


def run(root, script):
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "THREELOOPS_ROOT")}
    variables |= {"AUTOGRADER": str(root), "THREELOOPS_PYTHON": sys.executable}
    command = ["bash", str(root / "source" / script)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_the_autograder_runs_as_gradescope_runs_it(released, autograder):
    source = autograder / "source/course/solutions" / released.slug
    assert "answers.md" not in {path.name for path in source.iterdir()}
    assert run(autograder, "setup.sh").returncode == 0
    (autograder / "submission").mkdir()
    nbformat.write(submissions(released)["half_done"][0], autograder / "submission" / f"{released.slug}.ipynb")
    done = run(autograder, "run_autograder")
    assert done.returncode == 0, done.stderr
    result = json.loads((autograder / "results/results.json").read_text())
    assert result["score"] == 40.0
    assert [(t["name"], t["score"], t["max_score"]) for t in result["tests"]][0] == ("mean", 40.0, 40.0)
    assert "a median is not a mean" not in json.dumps(result)
    assert result["stdout_visibility"] == "hidden"


def test_gradescope_is_told_what_is_missing_in_a_submission(released, autograder):
    shutil.rmtree(autograder / "submission", ignore_errors=True)
    (autograder / "submission").mkdir()
    (autograder / "submission/essay.txt").write_text("")
    assert run(autograder, "setup.sh").returncode == run(autograder, "run_autograder").returncode == 0
    result = json.loads((autograder / "results/results.json").read_text())
    assert result["score"] == 0
    assert f"expected one file {released.slug}.ipynb, found 0 among essay.txt" in result["output"]
