"""Files that are no submission, a disk that is full, pages that must stay clean: nobody's work is lost or mixed up."""

import json
import os
import resource
import signal
from pathlib import Path

import pytest
from grading import QUICK, SANDBOXES, fresh_course, grade, needs, submission
from threeloops_grader.grading import records
from threeloops_grader.grading.grade import Options, execute
from threeloops_grader.grading.scoring import Report
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.submissions.reading import BadSubmission, Submission, read
from threeloops_grader.worklist.grade_class import grade_class

FORGE = (Path(__file__).resolve().parents[2] / "attacks" / "forge.py").read_text()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("files")) as lab:
        yield lab


@pytest.fixture
def hand_in(lab, tmp_path):
    """Write one student's notebook into a folder of submissions."""

    def write(student, content):
        path = tmp_path / "submitted" / student / lab.slug / f"{lab.slug}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


def cells(lab, **changes):
    """The reference as plain JSON, each cell updated by `changes`."""
    return {**lab.master(), "cells": [{**cell, **changes} for cell in lab.master().cells]}


def no_notebooks(lab):
    deep = b'{"cells": [], "metadata": ' + b'{"x": ' * 400 + b"1" + b"}" * 401
    return {
        "not_json": (b"%PDF-1.7", "not JSON"),
        "cut_off": (json.dumps(lab.master()).encode()[:-100], "not JSON"),
        "nothing": (b" \n", "empty"),
        "no_cells": ({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, "empty"),
        "a_list": (b"[1, 2]", "a JSON list"),
        "a_number": (b"1e400", "a JSON float"),
        "old": ({"worksheets": [{"cells": []}], "nbformat": 3}, "not a version 4 notebook"),
        "brackets": (b"[" * 1_000_000, "not JSON"),
        "deep": (deep, "empty"),
        "big": (b" " * (33 << 20), "at most 32 are read"),
        "digits": (b'{"cells": ' + b"9" * 10_000 + b"}", "not JSON"),
        "many": ({"cells": [{"cell_type": "code", "source": "1"}] * 1001}, "at most 1,000 are read"),
        "other_lab": (
            {"metadata": {"threeloops": {"lab": "01_roofline"}}, "cells": [{"cell_type": "code", "source": "1"}]},
            "the notebook of lab '01_roofline'",
        ),
        "odd_cells": ({"cells": [1, None, "x", [], {}], "metadata": []}, "no answer cell"),
        "odd_fields": (cells(lab, metadata=[], id=7, source={"x": 1}, outputs="no"), "no answer cell"),
    }


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_what_is_no_submission_fails_alone(lab, hand_in, tmp_path, sandbox):
    """One record each with its reason; the others are graded."""
    needs(sandbox)
    reasons = {}
    for student, (content, reason) in no_notebooks(lab).items():
        hand_in(student, content)
        reasons[student] = reason
    folder = tmp_path / "submitted"
    target = hand_in("honest", lab.master())
    links = {"linked_file": target, "linked_lab": target.parent, "linked_student": target.parent.parent}
    (folder / "linked_file" / lab.slug).mkdir(parents=True)
    (folder / "linked_lab").mkdir()
    (folder / "linked_file" / lab.slug / f"{lab.slug}.ipynb").symlink_to(links["linked_file"])
    (folder / "linked_lab" / lab.slug).symlink_to(links["linked_lab"])
    (folder / "linked_student").symlink_to(links["linked_student"])
    hand_in("a_folder", b"").unlink()
    (folder / "a_folder" / lab.slug / f"{lab.slug}.ipynb").mkdir()
    hand_in("a_pipe", b"").unlink()
    os.mkfifo(folder / "a_pipe" / lab.slug / f"{lab.slug}.ipynb")
    hand_in("other_name", b"{}").rename(folder / "other_name" / lab.slug / "mine\x1b\udcff.ipynb")
    names = ["x..y", "x..", " ", "a\\b", "a\nb", "\x1b[2J", "\udcff\udcfe", "x" * 101]
    for name in names:
        hand_in(name, lab.master())
    shown = [*names[:4], "a\\nb", "\\x1b[2J", "\\udcff\\udcfe", names[-1]]
    reasons |= dict.fromkeys(links, "symbolic link") | dict.fromkeys(shown, "cannot be a student's")
    reasons |= {"a_folder": "no file", "a_pipe": "is a pipe", "other_name": "mine\\x1b\\udcff.ipynb"}

    report = grade_class(folder, lab, Options(sandbox=sandbox, limits=QUICK, records=tmp_path / "records"))

    found = {r.student: r for r in report.records}
    assert found.pop("honest").score == 100.0
    assert {s for s, r in found.items() if r.score or r.status != "failed"} == set()
    assert {s: r.notes for s, r in found.items() if reasons[s] not in r.notes[0]} == {}
    assert found.keys() == reasons.keys()
    assert all(text.isprintable() for r in report.records for text in (r.student, *r.notes))
    written = records.to_json(report.to_dict()).encode()
    assert len(json.loads(written)["records"]) == len(reasons) + 1
    assert not any(line.startswith(("=", "+", "@", "-")) for line in records.to_csv(report).splitlines())


def test_a_name_that_climbs_out_is_no_student(lab, tmp_path):
    path = tmp_path / "submitted" / ".." / "x" / lab.slug / f"{lab.slug}.ipynb"
    (tmp_path / "submitted").mkdir()
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(lab.master()))
    with pytest.raises(BadSubmission, match="cannot be a student's"):
        read(Submission("../x", path), tmp_path / "submitted")


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_full_disk_loses_nothing(lab, hand_in, tmp_path, sandbox):
    """The run stops with the reason; no half record stays, and the next run completes the class."""
    needs(sandbox)
    for student in ("ada", "bob", "eve"):
        hand_in(student, lab.master())
    kept = tmp_path / "records"
    options = Options(sandbox=sandbox, jobs=1, records=kept, limits=QUICK)
    grade(lab, submission(lab), sandbox)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(MachineFault, match="stopped at ada, nobody lost points.* too large"):
            grade_class(tmp_path / "submitted", lab, options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, usual)
    assert [path.name for path in kept.rglob("*.*")] == [".claims"], "only the file of locks, which is empty"
    report = grade_class(tmp_path / "submitted", lab, options)
    assert [r.score for r in report.records] == [100.0] * 3
    resumed = []
    grade_class(tmp_path / "submitted", lab, options, lambda record, old: resumed.append(old))
    assert resumed == [True] * 3


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_no_script_reaches_a_page(lab, sandbox):
    """Pictures and text are all that a student's cell may show, whatever its side of the wall says it showed."""
    needs(sandbox)
    shown = [{"text/html": "<script>", "text/plain": "<b>text", "image/png": '"><script>', "image/svg+xml": "<svg>"}, 7]
    answer = (
        FORGE
        + f"SHOWN = {json.dumps(shown)!r}\n"
        + "def forged(self, tree, buffers):\n    frame({'value': {'d': [['error', None], ['shown', SHOWN]]}})\n"
        + "side.Server.answer = forged\n"
    )
    executed = execute(submission(lab, before=answer), lab, Options(sandbox=sandbox, limits=QUICK), Report())
    data = [o.data for c in executed.cells for o in c.get("outputs", []) if o.output_type == "display_data"]
    assert {"text/plain": "<b>text"} in data
    assert {key for d in data for key in d} == {"text/plain"}


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_an_honest_picture_does(lab, sandbox):
    needs(sandbox)
    draw = (
        "import io, matplotlib.pyplot as plt\nfrom IPython.display import Image, display\nfile = io.BytesIO()\n"
        "plt.figure(figsize=(1, 1)).savefig(file)\ndisplay(Image(file.getvalue()))\nImage(file.getvalue())"
    )
    executed = execute(submission(lab, before=draw), lab, Options(sandbox=sandbox, limits=QUICK), Report())
    data = [o.data for c in executed.cells for o in c.get("outputs", []) if o.output_type == "display_data"]
    assert [sorted(d) for d in data] == [["image/png", "text/plain"]] * 2


TIMES = {
    "nbgrader_s_own": b"2030-01-31 12:00:00.123456 UTC\n",
    "with_an_offset": b"2030-01-31T12:00:00+01:00",
    "none_yet": b" \n",
}
NO_TIMES = {
    "words": b"tomorrow, perhaps",
    "digits": b"9" * 90,
    "a_date_that_is_none": b"2030-02-31 12:00:00 UTC",
    "before_the_first_day": b"0001-01-01 00:00:00 +99999",
    "not_ascii": "2030-01-31 \u00fc".encode("latin-1"),
    "a_terminal_s_orders": b"\x1b[2J",
    "long": b"2030-01-31 12:00:00 UTC" + b" " * 200,
}


@pytest.mark.parametrize("name", TIMES)
def test_the_time_of_a_submission_is_read(lab, hand_in, tmp_path, name):
    path = hand_in("ada", lab.master())
    (path.parent / "timestamp.txt").write_bytes(TIMES[name])
    assert read(Submission("ada", path), tmp_path).cells


@pytest.mark.parametrize("name", NO_TIMES)
def test_a_timestamp_that_nbgrader_cannot_read_is_refused(lab, hand_in, tmp_path, name):
    path = hand_in("ada", lab.master())
    (path.parent / "timestamp.txt").write_bytes(NO_TIMES[name])
    with pytest.raises(BadSubmission, match=r"timestamp\.txt does not hold a time: found '.*delete") as refused:
        read(Submission("ada", path), tmp_path)
    assert str(refused.value).isprintable()
