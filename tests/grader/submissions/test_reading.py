"""Reading a submission is cheap whatever lies in the folder, and never leads anywhere else."""

import json
import os
import signal
from contextlib import suppress

import pytest
from threeloops_grader.submissions.folder import MAX_FILES, MAX_FOLDER_BYTES, BadSubmission
from threeloops_grader.submissions.parse import _MAX_CONTAINERS, _MAX_VALUES, parse
from threeloops_grader.submissions.reading import Submission, content
from toy_course import make_course

SIZE = 4 << 20
HOSTILE = {
    "objects in cells": b'{"cells":[' + b"{}," * (SIZE // 3) + b"{}]}",
    "objects elsewhere": b'{"cells":[],"x":[' + b'{"a":1},' * (SIZE // 8) + b"1]}",
    "as many objects as are read": b'{"x":[' + b'{"a":1},' * (_MAX_CONTAINERS - 10) + b"1]}",
    "as many values as are read": b'{"x":[' + b'"ab",' * (_MAX_VALUES - 10) + b"1]}",
    "short strings": b"[" + b'"ab",' * (SIZE // 5) + b"1]",
    "repeated keys": b"{" + b'"cells":[],' * (SIZE // 11) + b'"a":1}',
    "deep lists": b"[" * SIZE,
    "numbers": b'{"cells":[' + b"1.5," * (SIZE // 4) + b"1]}",
    "digits": b'{"cells":[' + b"9" * SIZE + b"]}",
    "wide text": b'{"cells":[{"source":"' + b"x" * SIZE + '\U0001f600"}]}'.encode(),
    "a list of lines": b'{"cells":[{"source":[' + b'"x",' * (_MAX_VALUES - 10) + b'"\xf0\x9f\x98\x80"]}]}',
    "escapes": b'{"cells":[{"source":"' + b'\\"' * (SIZE // 2) + b'"}]}',
    "escapes without end": b'"' + b'\\"' * (SIZE // 2) + b"\\",
    "quotes": b'"' * SIZE,
}


def peak_bytes(text):
    """The most memory that a fork of this process held while it parsed `text`; without `text`, what it started with."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        failed = 1
        try:
            with suppress(BadSubmission):
                if text is not None:
                    parse(text)
            failed = 0
        finally:
            os._exit(failed)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return usage.ru_maxrss << 10


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_is_bounded_by_a_multiple_of_the_file(name):
    """30 times its size: building 4 MiB of empty objects took 450 times as much."""
    text = HOSTILE[name]
    assert peak_bytes(text) - peak_bytes(None) < 30 * len(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HOSTILE["objects in cells"], "more than 200,000 lists and objects"),
        (b"[" + b"0," * _MAX_VALUES + b"0]", "or 1,000,000 values"),
        (b'{"cells": [' + b"{}," * 1000 + b"{}]}", "1,001 cells; at most 1,000 are read"),
        (HOSTILE["escapes without end"], "not JSON"),
    ],
)
def test_what_costs_too_much_is_refused_with_its_number(text, reason):
    with pytest.raises(BadSubmission, match=reason):
        parse(text)


def test_brackets_inside_of_text_are_no_objects():
    source = '"{[,' * _MAX_CONTAINERS
    assert parse(json.dumps({"cells": [{"source": source}]}).encode()).cells[0].source == source


def test_only_what_grading_reads_is_kept():
    cell = {
        "id": "mean",
        "cell_type": "code",
        "source": ["a\n", 1, "b"],
        "outputs": [{"data": {}}],
        "metadata": {"nbgrader": {"grade_id": "mean", "points": {"x": 1}, "other": 1}, "tags": ["a", {}], "x": {}},
    }
    notebook = {"metadata": {"threeloops": {"lab": "01", "x": {}}, "kernelspec": {}}, "cells": [cell, 7], "y": 1}
    assert parse(json.dumps(notebook).encode()) == {
        "metadata": {"threeloops": {"lab": "01"}},
        "cells": [
            {
                "id": "mean",
                "cell_type": "code",
                "source": "a\nb",
                "metadata": {"nbgrader": {"grade_id": "mean"}, "tags": ["a"]},
            }
        ],
    }


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def many(folder):
    for number in range(MAX_FILES):
        (folder / str(number)).touch()


FOLDERS = {
    "link": (lambda f: (f / "x").symlink_to("/dev/zero"), "x is a symbolic link"),
    "dangling link": (lambda f: (f / "x").symlink_to("nowhere"), "x is a symbolic link"),
    "linked folder": (lambda f: (f / "x").symlink_to("/", target_is_directory=True), "x is a symbolic link"),
    "pipe": (lambda f: os.mkfifo(f / "timestamp.txt"), "timestamp.txt is a pipe"),
    "large file": (lambda f: sparse(f / "x", MAX_FOLDER_BYTES), "at most 100 are accepted"),
    "many files": (many, "more than 1,000 files"),
    "unreadable name": (lambda f: (f / "\x1b[2J").symlink_to("x"), r"\\x1b\[2J is a symbolic link"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_looked_at_before_any_file_is_opened(tmp_path, name):
    lab = make_course(tmp_path / "course")
    folder = tmp_path / "submitted" / "ada" / lab.slug
    folder.mkdir(parents=True)
    notebook = folder / f"{lab.slug}.ipynb"
    notebook.write_text(json.dumps(lab.master()))
    assert content(Submission("ada", notebook), tmp_path / "submitted") == notebook.read_bytes()
    fill, reason = FOLDERS[name]
    fill(folder)
    with pytest.raises(BadSubmission, match=reason):
        content(Submission("ada", notebook), tmp_path / "submitted")


def test_a_disk_that_fails_is_no_fault_of_the_file(tmp_path, monkeypatch):
    """A file that cannot be opened is the student's to mend; a machine that cannot open files is not."""
    lab = make_course(tmp_path / "course")
    notebook = tmp_path / "ada" / lab.slug / f"{lab.slug}.ipynb"
    notebook.parent.mkdir(parents=True)
    notebook.touch()
    for number, expected in ((13, BadSubmission), (5, OSError), (24, OSError), (12, OSError)):

        def fails(self, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(type(notebook), "read_bytes", fails)
        with pytest.raises(
            expected, match="cannot be read: Permission denied" if number == 13 else os.strerror(number)
        ):
            content(Submission("ada", notebook), tmp_path)
