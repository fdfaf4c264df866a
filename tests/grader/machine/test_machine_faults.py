"""A fault of the machine or of the course stops a run with exit code 2. It is never a student's points."""

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
from grading import QUICK, SANDBOXES, fresh_course, needs, points, submission
from threeloops_grader.authoring.labs import LabLimits
from threeloops_grader.authoring.manifest import Kind, manifest
from threeloops_grader.course import grade_command
from threeloops_grader.grading import fingerprint
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.grading.scoring import _points, _select
from threeloops_grader.grading.session import Session
from threeloops_grader.machine.child_process import CODE
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.sandbox.pool import pool
from threeloops_grader.wall.outcome import Outcome
from threeloops_grader.worklist.grade_class import grade_class
from toy_course import SOURCE, make_course

ERRORS = (MemoryError(), RuntimeError("odd"), OSError(errno.ENOSPC, "No space left on device"))
STUDENTS = ("ada", "bob", "cleo", "dora")
TEST = "with check("


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("faults")) as lab:
        yield lab


@pytest.fixture
def classroom(lab, tmp_path):
    return hand_in(lab, tmp_path / "submitted", STUDENTS)


def hand_in(lab, folder, students, **answers):
    for student in students:
        path = folder / student / lab.slug / f"{lab.slug}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(submission(lab, **answers)))
    return folder


def command(lab, folder, *words, code=CODE, prefix=(), **changes):
    """`threeloops grade --sandbox none`, from the code in `code`."""
    lines = [
        sys.executable,
        "-m",
        "threeloops_grader.cli",
        "grade",
        "--lab",
        "toy",
        "--submissions",
        str(folder),
        *words,
    ]
    path = os.pathsep.join([str(code / "grader"), str(code / "lib"), *[p for p in sys.path if "site-packages" in p]])
    return subprocess.Popen(
        [*prefix, *lines, "--sandbox", "none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=lab.root,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "THREELOOPS_ROOT": str(lab.root),
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
            **changes,
        },
        start_new_session=True,
    )


def finished(process):
    """Its exit code and what it printed, in one line."""
    try:
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, " ".join((out + err).split())


def kept(folder):
    return [json.loads(path.read_text())["record"] for path in (folder / ".threeloops").rglob("*.json")]


def test_a_full_temporary_folder_stops_the_run_and_the_next_one_grades(lab, classroom, tmp_path):
    needs("bwrap")  # to mount a small tmpfs without being root
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    mount = ["bwrap", "--dev-bind", "/", "/", "--size", str(256 << 10), "--tmpfs", str(tiny)]
    code, said = finished(command(lab, classroom, prefix=mount, TMPDIR=str(tiny)))
    assert code == 2
    assert "No space left on device" in said
    assert "nobody lost points" in said
    assert "free some space there" in said
    assert kept(classroom) == []
    code, said = finished(command(lab, classroom))
    assert (code, "4 with full points" in said, "graded before" in said) == (0, True, False)


def test_a_killed_run_leaves_only_whole_records_and_the_next_goes_on(lab, classroom):
    running = command(lab, classroom, "--jobs", "1")
    try:
        while "ada" not in (line := running.stdout.readline()):
            assert line, running.stderr.read()
        os.kill(running.pid, signal.SIGKILL)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=60)
    assert [r["score"] for r in kept(classroom)] == [100.0] * len(kept(classroom))
    assert kept(classroom)
    code, said = finished(command(lab, classroom))
    assert (code, "4 with full points" in said, "graded before" in said) == (0, True, True)


def test_a_broken_library_is_nobodys_zero(lab, classroom, tmp_path):
    """A copy of the code in which one module of the library cannot be imported."""
    tree = tmp_path / "tree"
    for part in ("grader", "lib"):
        shutil.copytree(CODE / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CODE / "pyproject.toml", tree)
    module = tree / "lib" / "threeloops" / "lab" / "checking" / "check.py"
    assert module.is_file(), sorted(p.name for p in module.parent.iterdir())
    module.write_text("raise ImportError('broken on purpose')\n")
    code, said = finished(command(lab, classroom, code=tree))
    assert code == 2
    assert "broken on purpose" in said
    assert kept(classroom) == []


SETUP_IMPORT = ("import numpy as np\n", "import numpy as np\nimport threeloops.not_there\n")
SETUP_GRADERS = ("import numpy as np\n", "import numpy as np\nassert not Path('90_toy.py').exists(), 'here'\n")
TEST_IMPORT = (TEST, "import threeloops.not_there\nwith check(")
TEST_DISK = (TEST, "raise OSError(28, 'No space left on device')\nwith check(")


@pytest.mark.parametrize(
    ("sandbox", "change", "reason"),
    [
        ("bwrap", SETUP_IMPORT, "a setup cell of the lab failed on the student's side.*not_there"),
        ("none", SETUP_GRADERS, "a setup cell of the lab failed on the grader's side.*here"),
        ("none", TEST_IMPORT, "a test cell met a fault of this machine .*not_there"),
        ("bwrap", TEST_DISK, "a test cell met a fault of this machine .*No space left"),
    ],
)
def test_what_fails_for_everybody_is_nobodys_zero(tmp_path, sandbox, change, reason):
    needs(sandbox)
    with fresh_course(tmp_path, lambda root: make_course(root, SOURCE.replace(*change, 1))) as lab:
        folder = hand_in(lab, tmp_path / "submitted", STUDENTS)
        options = Options(sandbox, records=tmp_path / "kept", limits=QUICK)
        with pytest.raises(MachineFault, match=reason):
            grade_class(folder, lab, options)
        assert list(tmp_path.glob("kept/**/*.json")) == []
        lab.source.write_text(SOURCE)
        assert [r.score for r in grade_class(folder, lab, options).records] == [100.0] * 4


SECOND_SETUP = """\
# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_two", "locked": true, "schema_version": 3, \
"solution": false, "task": false}
FIRST = CODE

# %% [markdown]
# ## Exercise 2 (60 points)
"""


def make_two_setups(root, code):
    """The toy lab with a second setup cell, after a test that gives the samples away to be changed in place."""
    source = SOURCE.replace("# %% [markdown]\n# ## Exercise 2 (60 points)\n", SECOND_SETUP.replace("CODE", code))
    source = source.replace("import check,", "import check, inout,").replace("mean(SAMPLES)", "mean(inout(SAMPLES))")
    return make_course(root, source)


EMPTIES = """\
def mean(values):
    result = sum(values) / len(values)
    values.clear()
    return result
"""


def test_a_later_setup_cell_that_an_answer_spoils_stops_nobody(tmp_path):
    """The answer emptied a list of the first setup cell; the second runs again where no test has been."""
    with fresh_course(tmp_path, lambda root: make_two_setups(root, "SAMPLES[0]")) as lab:
        assert points(grade_notebook(submission(lab), lab, "x", Options("none"))) == {"mean": 40.0, "rescale": 60.0}
        spoilt = grade_notebook(submission(lab, mean=EMPTIES), lab, "x", Options("none"))
        assert points(spoilt) == {"mean": 0.0, "rescale": 60.0}


RAISES_WITH_200_MIB = """\

def mean(values):
    return sum(values) / len(values)

size = 200 << 20

def forged(self, tree, buffers):
    if tree["op"] == "call" and tree["value"][0] == [[]]:
        text = json.dumps({"error": {"classes": ["builtins.ValueError"], "message": "values"}}).encode()
        raw.sendall(struct.pack("<IIQQ", len(text), 1, size, size) + text)
        for _ in range(200):
            raw.sendall(bytes(1 << 20))
    else:
        usual(self, tree, buffers)

side.Server.answer = forged
"""


def test_what_came_with_an_exception_is_forgotten_before_the_next_cell(tmp_path):
    """The check that caught it is part of a cycle; the second setup cell would meet a side that is full."""
    forge = (CODE / "tests" / "attacks" / "forge.py").read_text()
    with fresh_course(tmp_path, lambda root: make_two_setups(root, "np.zeros(128 << 17)")) as lab:
        with Session(manifest(lab), pool(lab, "none"), replace(QUICK, memory_mb=300)) as session:
            cells = submission(lab, mean=forge + RAISES_WITH_200_MIB).cells
            outcomes = {cell.id: session.run(cell) for _, cell in _select(cells, session.manifest)}
            assert session.restarts_left == len(session.manifest.parts) + 2
        assert [outcomes[name].ok for name in ("mean_test", "setup_two", "rescale_test_values")] == [True, True, True]


def test_a_later_setup_cell_that_fails_by_itself_is_nobodys_zero(tmp_path):
    fails_here = "1 / (not Path('90_toy.py').exists())"
    with (
        fresh_course(tmp_path, lambda root: make_two_setups(root, fails_here)) as lab,
        pytest.raises(MachineFault, match="a setup cell of the lab failed on the grader's side"),
    ):
        grade_notebook(submission(lab), lab, "x", Options("none"))


@pytest.mark.parametrize("code", ["raise OSError(28, 'No space left on device')", "import not_there"])
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_student_cannot_pass_for_the_machine(lab, sandbox, code):
    """Neither in the answer nor in a cell of their own that spoils setup."""
    needs(sandbox)
    record = grade_notebook(submission(lab, mean=f"def mean(values):\n    {code}\n"), lab, "x", Options(sandbox))
    assert points(record) == {"mean": 0.0, "rescale": 60.0}
    spoilt = submission(lab, before="import builtins\nbuiltins.open = __builtins__.__import__ = None")
    assert grade_notebook(spoilt, lab, "x", Options(sandbox)).status == "graded"


def below(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("hung_up", [False, True], ids=["perhaps not yet reported", "reported before the next cell"])
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_killed_test_process_is_no_verdict(lab, sandbox, hung_up):
    needs(sandbox)
    with Session(manifest(lab), pool(lab, sandbox), QUICK) as session:
        assert session.cell(Kind.FREE, "x = 1").ok
        (half,) = below(pool(lab, sandbox)._processes[1])
        half.kill()
        if hung_up:
            ended = select.poll()
            ended.register(session.connection.grader.socket, select.POLLHUP)
            assert ended.poll(60_000)
        with pytest.raises(MachineFault, match=r"lost \(SIGKILL\)"):
            session.cell(Kind.TEST, "assert True")


def test_a_test_process_that_an_answer_crashes_costs_that_test(lab):
    with Session(manifest(lab), pool(lab, "none"), QUICK) as session:
        assert session.cell(Kind.FREE, "x = 1").ok
        outcome = session.cell(Kind.TEST, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
        assert "crashed (SIGSEGV) on what the answer gave it" in outcome.reason
        assert session.cell(Kind.TEST, "assert True").ok


def test_a_process_that_crashes_on_what_a_student_s_own_cell_sent_is_the_student_s(lab):
    """The grader's half reads what comes back of every cell, not only of tests."""
    with Session(manifest(lab), pool(lab, "none"), QUICK) as session:
        assert session.cell(Kind.FREE, "x = 1").ok
        (half,) = below(pool(lab, "none")._processes[1])
        crash = f"import os, signal\nos.kill({half.pid}, signal.SIGSEGV)"
        assert "crashed (SIGSEGV) on what the answer gave it" in session.cell(Kind.FREE, crash).reason
        assert session.cell(Kind.TEST, "assert True").ok


NO_ROOM_TO_REPORT = """\
import sys

def fails(*_):
    raise MemoryError

frame = sys._getframe()
while "asdict" not in frame.f_globals:
    frame = frame.f_back
frame.f_globals["asdict"] = fails
"""


def test_a_test_process_without_memory_to_report_costs_that_test(lab):
    with Session(manifest(lab), pool(lab, "none"), QUICK) as session:
        assert session.cell(Kind.FREE, "x = 1").ok
        assert "crashed (SIGABRT) on what the answer gave it" in session.cell(Kind.TEST, NO_ROOM_TO_REPORT).reason
        assert session.cell(Kind.TEST, "assert True").ok


def test_a_test_that_takes_too_long_is_still_the_answers(lab):
    limits = LabLimits(test_seconds=1, memory_mb=1024)
    with Session(manifest(lab), pool(lab, "none"), limits) as session:
        assert session.cell(Kind.TEST, "while True: pass").reason == "the test did not end within 1 s"


def test_a_killed_monitor_is_no_verdict(lab):
    """A submission cannot reach its monitor through the sandbox: only the machine ends one."""
    needs("bwrap")
    with Session(manifest(lab), pool(lab, "bwrap"), QUICK) as session:
        assert session.cell(Kind.FREE, "x = 1").ok
        (submitted,) = [p for p in below(pool(lab, "bwrap")._processes[0]) if not p.children()]
        submitted.parent().kill()
        submitted.wait(60)
        with pytest.raises(MachineFault, match="monitor was ended from outside"):
            session.cell(Kind.FREE, "x = 1")


def test_a_submission_that_ends_itself_is_a_verdict(lab):
    needs("bwrap")
    with Session(manifest(lab), pool(lab, "bwrap"), QUICK) as session:
        assert "process was lost: it ended" in session.cell(Kind.FREE, "import os; os._exit(1)").reason


def test_the_last_word_of_a_test_process_is_an_outcome():
    assert _points(Outcome(ended="SIGKILL"), 40.0) == 0.0


def test_fresh_replaces_what_was_kept(lab, classroom, tmp_path):
    options = Options("none", records=tmp_path / "kept", limits=QUICK)
    grade_class(classroom, lab, options)
    for path in (tmp_path / "kept").rglob("*.json"):
        path.write_text(path.read_text().replace("100.0", "7.0"))

    def scores(**changes):
        return {r.score for r in grade_class(classroom, lab, Options("none", **changes)).records}

    same = {"records": tmp_path / "kept", "limits": QUICK}
    assert scores(**same) == {7.0}
    assert scores(**same, fresh=True) == {100.0}
    assert scores(**same) == {100.0}


def test_a_submission_that_could_not_be_read_is_looked_at_again(lab, classroom, tmp_path):
    notebook = classroom / "ada" / lab.slug / f"{lab.slug}.ipynb"
    notebook.rename(tmp_path / "aside")
    options = Options("none", records=tmp_path / "kept", limits=QUICK)
    assert grade_class(classroom, lab, options).records[0].status == "failed"
    assert len(list((tmp_path / "kept").rglob("*.json"))) == 3
    (tmp_path / "aside").rename(notebook)
    assert grade_class(classroom, lab, options).records[0].score == 100.0


def test_a_record_is_kept_for_one_way_of_grading(tmp_path, monkeypatch):
    lab = make_course(tmp_path / "course")
    monkeypatch.setattr(fingerprint, "HARNESS", tmp_path / "code" / "grader")
    monkeypatch.setattr(fingerprint, "LIBRARY", tmp_path / "code" / "lib" / "threeloops")
    files = [tmp_path / "code" / "grader" / "x.py", tmp_path / "code" / "lib" / "threeloops" / "lab" / "y.py"]
    files += [lab.source, lab.data / "samples.txt"]
    for path in files[:2]:
        path.parent.mkdir(parents=True)
        path.touch()
    seen = {fingerprint.fingerprint(lab, None, "bwrap")}
    assert seen == {fingerprint.fingerprint(lab, None, "bwrap")}
    for path in files:
        path.write_text(path.read_text() + "\n")
        seen.add(fingerprint.fingerprint(lab, None, "bwrap"))
    seen.add(fingerprint.fingerprint(lab, LabLimits(memory_mb=1), "bwrap"))
    seen.add(fingerprint.fingerprint(lab, None, "none"))
    assert len(seen) == 7


def test_a_class_in_a_folder_that_is_only_to_read_is_graded(lab, classroom):
    needs("bwrap")
    lock = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(classroom), str(classroom)]
    code, said = finished(command(lab, classroom, prefix=lock))
    assert (code, "4 with full points" in said) == (0, True)
    assert "No records are kept" in said


def test_a_place_for_records_that_is_none_stops_the_run_before_anybody_is_graded(lab, classroom):
    (classroom / ".threeloops").write_text("a file")
    code, said = finished(command(lab, classroom))
    assert code == 2
    assert ".threeloops" in said
    assert "ada" not in said


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("odd"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_any_other_exception_names_the_student_and_the_next_step(lab, classroom, tmp_path, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("threeloops_grader.grading.grade.execute", fails)
    with pytest.raises(MachineFault, match="grading stopped at .*, nobody lost points: .*(again|report|--jobs 1)"):
        grade_class(classroom, lab, Options("none", records=tmp_path / "kept"))
    assert [path.name for path in (tmp_path / "kept").rglob("*") if path.is_file()] == [".claims"]


def test_notes_are_short(lab):
    before = "\n".join(f"# {n}" for n in range(3))
    notebook = submission(lab, before=before)
    for number in range(300):
        notebook.cells.append({**notebook.cells[2], "id": "mean", "source": f"x = {number}"})
    notebook.cells += [{**c, "id": c.id} for c in lab.master().cells if c.id == "mean"] * 100
    record = grade_notebook(notebook, lab, "x", Options("none", limits=QUICK))
    assert len(record.notes) <= 41
    assert max(map(len, record.notes)) < 700


def test_the_page_of_a_class_says_that_nothing_was_isolated(lab, classroom):
    report = grade_class(classroom, lab, Options("none", limits=QUICK))
    assert "graded without isolation" in grade_command._class_page(report)
