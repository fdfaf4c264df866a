"""After a pass: why it works, the model answer where it may be seen, and the reader's own beside it."""

import pytest
from threeloops.lab import check, debrief
from threeloops.lab.answers import debrief as debrief_module


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
