"""After a pass: why it works, the model answer where it may be seen, and the reader's own beside it."""

import linecache
import sys

import pytest
from threeloops.lab import check, debrief
from threeloops.lab.checking import debrief as debrief_module
from threeloops.lab.predictions import gate

MODEL = '''\
# %% nbgrader={"grade": false, "grade_id": "reuse", "locked": false, "schema_version": 3, "solution": true, "task": false}
def reuse(tile):
    """How often an element is used."""
    ### BEGIN SOLUTION
    # One row meets all columns.
    return tile
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "reuse_test", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check.equal(reuse(3), 3)
'''  # noqa: E501 (a cell's metadata stands on one line)

OWN = """\
def reuse(tile):
    n = 0
    for _ in range(tile):
        n += 1
    return n
"""


@pytest.fixture(autouse=True)
def nothing_passed():
    for state in (gate._happened, gate._waiting, debrief_module._facts):
        state.clear()


@pytest.fixture
def in_a_lab(tmp_path, monkeypatch):
    """A reader's folder beside the course's solutions, and their answer in the notebook's namespace."""
    source = tmp_path / "solutions" / "02_memory_hierarchy" / "02_memory_hierarchy.py"
    source.parent.mkdir(parents=True)
    source.write_text(MODEL)
    folder = tmp_path / "work" / "02_memory_hierarchy"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("THREELOOPS_SOLUTIONS", raising=False)
    linecache.cache["<cell 7>"] = (len(OWN), None, OWN.splitlines(keepends=True), "<cell 7>")
    space = {"__name__": "__main__"}
    exec(compile(OWN, "<cell 7>", "exec"), space)
    monkeypatch.setattr(sys.modules["__main__"], "reuse", space["reuse"], raising=False)
    return source


def solve(part="", **facts):
    with check("reuse", "how often", part=part):
        check.true(True, "")
        for what, (own, model) in facts.items():
            check.note(what, own, model, "B")


def test_it_opens_with_the_pass_and_not_before(capsys):
    debrief("reuse", "Each row of the tile meets every column.")
    assert "Opens when the checks of `reuse` pass" in capsys.readouterr().out
    solve()
    debrief("reuse", "Each row of the tile meets every column.")
    assert "Why it works (reuse): Each row" in capsys.readouterr().out


def test_it_waits_for_every_part(capsys):
    solve("values")
    debrief("reuse", "Because.", parts=("values", "edge_cases"))
    assert "pass (edge cases)" in capsys.readouterr().out
    solve("edge_cases")
    debrief("reuse", "Because.", parts=("values", "edge_cases"))
    assert "Because." in capsys.readouterr().out


def test_a_failed_check_opens_nothing(capsys):
    with pytest.raises(AssertionError), check("reuse", "how often"):
        check.true(True, "")
        check.true(False, "no")
    debrief("reuse", "Because.")
    assert "Opens when" in capsys.readouterr().out


def test_the_live_form_fills_itself_when_the_last_part_passes(monkeypatch):
    shown = []
    monkeypatch.setattr(debrief_module, "publish", lambda *_, widget=None: shown.append(widget))
    monkeypatch.setattr(debrief_module, "live", lambda: True)
    debrief("reuse", "Because `n` grows.", parts=("values", "edges"))
    solve("values")
    assert "Opens when" in shown[0].value
    solve("edges")
    assert "Because <code>n</code> grows." in shown[0].value


def test_the_model_answer_stands_beside_the_readers_own(in_a_lab):
    solve(traffic=(384.0, 256.0))
    html = debrief_module._html("reuse", "Because.")
    assert "One row meets all columns" in html and "BEGIN SOLUTION" not in html and "check.equal" not in html
    assert debrief_module._comparison("reuse") == [("traffic", "384 B", "256 B"), ("lines of code", "5", "2")]


def test_where_the_solutions_are_not_there_is_no_model_answer(in_a_lab, monkeypatch, tmp_path):
    moved = tmp_path / "after the deadline"
    in_a_lab.parents[1].rename(moved)
    solve()
    assert "model answer" not in debrief_module._html("reuse", "Because.").lower()
    monkeypatch.setenv("THREELOOPS_SOLUTIONS", str(moved))
    assert "One row meets all columns" in debrief_module._html("reuse", "Because.")
