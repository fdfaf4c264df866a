"""The class's log: lines are only appended, whole or not at all, and a line that was edited later is noticed."""

import json
import os
import stat
import threading

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.register import log


def test_a_line_says_who_when_and_whose_points(tmp_path):
    log.append("class grade 90", "90_toy", tmp_path, points={"ada": [None, 40.0], "bob": [1.0, 1.0]})
    log.append("class export 90", "90_toy", tmp_path, points={"ada": 36.0})
    entries, faults = log.lines(tmp_path)
    assert faults == [] and entries[0]["who"] == log._user()
    when = entries[0]["when"]
    assert list(log.history(entries[:1], "90_toy")) == [
        f"{when} UTC  {entries[0]['who']}  class grade 90: ada no points -> 40"
    ]
    assert [line.partition("class ")[2] for line in log.history(entries, "90_toy", "ada")] == [
        "grade 90: ada no points -> 40",
        "export 90: ada 36",
    ]
    assert [line.partition("class ")[2] for line in log.history(entries, "", "bob")] == ["grade 90: bob 1, as before"]
    assert list(log.history(entries, "00_start_here")) == []
    assert stat.S_IMODE(log.log_path(tmp_path).stat().st_mode) == 0o600


def test_a_line_can_say_more_of_a_student_than_points(tmp_path):
    log.append("class extend", root=tmp_path, about={"ada": "24 hours more for 90_toy", "bob": "no extension"})
    log.append("class who", "90_toy", tmp_path, note="K7QF-M2XD", about="ada")
    entries, faults = log.lines(tmp_path)
    assert faults == [] and log.students_in(entries) == {"ada", "bob"}
    texts = {name: [line.partition("class ")[2] for line in log.history(entries, "", name)] for name in ("", "ada")}
    assert texts == {
        "": ["extend: ada 24 hours more for 90_toy, bob no extension", "who (K7QF-M2XD)"],
        "ada": ["extend: ada 24 hours more for 90_toy", "who (K7QF-M2XD)"],
    }


def test_the_name_is_that_of_the_account_and_not_of_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "somebody")
    monkeypatch.setenv("USER", "somebody")
    log.append("class init", root=tmp_path)
    assert log.lines(tmp_path)[0][0]["who"] != "somebody"


def test_many_writers_lose_no_line(tmp_path):
    def write():
        for number in range(20):
            log.append(f"command {number}", root=tmp_path, note="x" * 5000)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    entries, faults = log.lines(tmp_path)
    assert len(entries) == 80 and faults == []


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_an_edited_or_removed_line_is_noticed(tmp_path, change):
    for number in range(3):
        log.append(f"command {number}", root=tmp_path)
    path = log.log_path(tmp_path)
    written = path.read_text().splitlines(keepends=True)
    middle = [written[1].replace("command 1", "command 7")] if change == "edited" else []
    path.write_text("".join([written[0], *middle, written[2]]))
    _, faults = log.lines(tmp_path)
    assert len(faults) == 1 and "the lines before it were edited or removed" in faults[0]


def test_a_line_that_a_power_cut_left_unfinished_is_named_and_the_next_one_stands_alone(tmp_path):
    log.append("command 0", root=tmp_path)
    path = log.log_path(tmp_path)
    path.write_bytes(path.read_bytes() + b'{"when": "20')
    log.append("command 1", root=tmp_path)
    entries, faults = log.lines(tmp_path)
    assert [entry["command"] for entry in entries] == ["command 0", "command 1"]
    assert len(faults) == 1 and "line 2 is damaged" in faults[0]


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    log.append("command 0", root=tmp_path)
    before = log.log_path(tmp_path).read_bytes()

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)  # the line is written by then, as far as the process can tell
    with pytest.raises(LabError, match="`command 1` did its work, but its line in the log .*No space left"):
        log.append("command 1", root=tmp_path)
    assert log.log_path(tmp_path).read_bytes() == before


def test_the_last_fingerprint_is_that_of_the_lab(tmp_path):
    assert log.last_fingerprint("90_toy", tmp_path) is None
    for lab, name in (("90_toy", "a"), ("91_toy", "b")):
        log.append("class grade", lab, tmp_path, fingerprint={"before": None, "after": name})
    assert log.last_fingerprint("90_toy", tmp_path) == "a"


def test_lines_are_json_that_any_tool_reads(tmp_path):
    log.append("class init", root=tmp_path, note="Zoë \ud800\nnext")
    (line,) = log.log_path(tmp_path).read_bytes().splitlines()
    assert json.loads(line)["note"] == "Zoë \ud800\nnext"
