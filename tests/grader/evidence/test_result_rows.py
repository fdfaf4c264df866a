"""Rows outlive the process that measured them, and a piece that was cut off is done again, but not for ever."""

import subprocess
import sys

from threeloops_grader.evidence.result_rows import BEGUN, ENDED, append, begin, measured, note, read, settled
from threeloops_grader.machine.child_process import environment


def test_rows_of_something_else_are_dropped_and_its_own_are_kept(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    begin(path, "sources 1")
    append(path, {"a": 1})
    begin(path, "sources 1")
    assert read(path) == [{"a": 1}]
    begin(path, "sources 2")
    assert read(path) == []


def test_a_line_that_was_cut_off_costs_no_other(tmp_path):
    path = tmp_path / "rows.jsonl"
    begin(path, "")
    append(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"b": ')
    append(path, {"c": 3})
    assert read(path) == [{"a": 1}, {"c": 3}]


def test_the_latest_attempt_at_a_piece_counts(tmp_path):
    path = tmp_path / "rows.jsonl"
    begin(path, "")
    for state, rows in ((BEGUN, [1]), (BEGUN, [1, 2]), (ENDED, [])):
        note(path, "p", state)
        for row in rows:
            append(path, {"row": row})
    note(path, "cut off", BEGUN)
    append(path, {"row": 3})
    assert measured(path) == [{"row": 1}, {"row": 2}, {"row": 3}]
    assert settled(path) == {"p": True}
    note(path, "cut off", BEGUN)
    assert settled(path) == {"p": True, "cut off": False}


TESTS = """
import os, signal
import pytest

@pytest.mark.gpu
def test_right(): pass

@pytest.mark.gpu
def test_wrong(): assert 1 == 2, "one is not two"

@pytest.mark.gpu
def test_absent(): pytest.skip("no FP8")

def test_unmarked(): pass

@pytest.mark.gpu
def test_deadly(): os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.gpu
def test_last(): pass
"""


def test_a_run_of_tests_that_is_killed_keeps_its_outcomes_and_the_next_goes_on(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a CUDA device\n")
    (tmp_path / "test_gpu.py").write_text(TESTS)
    (tmp_path / "test_other.py").write_text("import no_such_package_zq  # says mark.gpu\n")
    path = tmp_path / "rows.jsonl"
    begin(path, "")

    def run():
        options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command = [sys.executable, "-m", "pytest", *options, "-p", "benchmarks.pytest_rows", "--rows", str(path)]
        subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=120)
        return {
            r["test"].partition("::")[2] or r["test"]: (r["outcome"], r["reason"]) for r in read(path) if "test" in r
        }

    first = run()
    assert first["test_right"][0] == "passed"
    assert first["test_wrong"] == ("failed", "AssertionError: one is not two")
    assert first["test_absent"] == ("skipped", "Skipped: no FP8")
    assert first["test_deadly"][0] == "begun" and "test_last" not in first and "test_unmarked" not in first
    assert first["test_other.py"] == ("not collected", "ModuleNotFoundError: No module named 'no_such_package_zq'")
    run()
    last = run()
    assert last["test_deadly"][0] == "begun" and last["test_last"][0] == "passed"
    begun = [row["test"] for row in read(path) if row.get("outcome") == "begun"]
    assert sum("test_right" in name for name in begun) == 1 and sum("test_deadly" in name for name in begun) == 2
