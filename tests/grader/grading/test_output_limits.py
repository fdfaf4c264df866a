"""How much of a submission's text and output is kept, and what its student reads where that was too much."""

import base64
import struct

import nbformat
import pytest
from grading import submission
from nbformat.v4 import new_code_cell, new_markdown_cell
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.grading.output_limits import _MAX_DISPLAYS, _MAX_PICTURES, _MAX_TEXT, Allowance
from threeloops_grader.processes.grader_process import _shown
from threeloops_grader.submissions.rebuild import _MAX_CELL_TEXT, rebuild
from threeloops_grader.submissions.submitted import NotThisLab
from threeloops_grader.wall.outcome import Outcome


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)
    return base64.b64encode(head + b"\0" * 20).decode()


def test_output_within_the_allowance_is_kept_as_it_is():
    outcome = Outcome(ok=True, student_printed="a", shown=[{"text/plain": "b", "image/png": "c"}, {"image/png": "d"}])
    allowance = Allowance()
    assert allowance.spend(outcome) == outcome
    assert allowance.notes == []


def test_pictures_are_counted_over_all_cells():
    allowance, big = Allowance(), {"image/png": "x" * (_MAX_PICTURES // 2)}
    assert allowance.spend(Outcome(shown=[big, big])).shown == [big, big]
    (last,) = allowance.spend(Outcome(shown=[{"image/png": "x"}])).shown
    assert last == {"text/plain": f"[{allowance.notes[0]}]"}
    assert "more than the 4 MB of pictures" in allowance.notes[0]


def test_text_is_counted_over_all_cells_printed_or_displayed():
    allowance = Allowance()
    allowance.spend(Outcome(student_printed="x" * (_MAX_TEXT - 10), shown=[{"text/plain": "y" * 5}]))
    kept = allowance.spend(Outcome(student_printed="z" * 100)).student_printed
    assert kept == f"{'z' * 5}\n[{allowance.notes[0]}]\n"
    assert "500,000 characters" in allowance.notes[0]
    assert len(allowance.spend(Outcome(student_printed="z" * 100)).student_printed) < 200
    assert len(allowance.notes) == 1


def test_displays_are_counted_however_small():
    allowance = Allowance()
    kept = allowance.spend(Outcome(shown=[{"text/plain": "x"}] * (_MAX_DISPLAYS + 50))).shown
    assert len(kept) == _MAX_DISPLAYS + 1
    assert kept[-1] == {"text/plain": f"[{allowance.notes[0]}]"}


@pytest.mark.parametrize(("width", "height", "kept"), [(640, 480, True), (100_000, 100_000, False), (0, 5, False)])
def test_a_picture_that_would_fill_a_browsers_memory_is_not_kept(width, height, kept):
    assert bool(_shown(f'[{{"image/png": "{png(width, height)}"}}]')) is kept


def test_a_cell_that_is_too_long_says_how_long_it_is_and_what_to_do(toy):
    long = "x = 1\n" * 10_000
    notebook = submission(toy, mean=long, reflection=long)
    notebook.cells += [new_code_cell(long), new_markdown_cell(long)]
    trusted = manifest(toy)
    rebuilt = rebuild(notebook, trusted)
    rest = "the cell has 60,000 characters; at most 50,000 are read: shorten it or split it and submit again"
    names = ["your own cell 1", "your own cell 2", "mean", "reflection"]
    assert rebuilt.notes == [f"{name}: {rest}" for name in names]
    texts = {c.id: c.source for c in rebuilt.notebook.cells}
    assert (texts["mean"], texts["reflection"]) == (f"# mean: {rest}", f"reflection: {rest}")
    assert (texts["free-0"], texts["free-1"]) == (f"# your own cell 1: {rest}", f"your own cell 2: {rest}")
    again = rebuild(rebuilt.notebook, trusted)
    assert again.notes == []
    assert [c.source for c in again.notebook.cells] == [c.source for c in rebuilt.notebook.cells]


def test_a_cell_at_the_limit_is_read(toy):
    text = "#" * _MAX_CELL_TEXT
    rebuilt = rebuild(submission(toy, mean=text), manifest(toy))
    assert text in [c.source for c in rebuilt.notebook.cells]
    assert rebuilt.notes == []


def test_all_cells_together_have_a_limit_too(toy):
    notebook = submission(toy)
    notebook.cells += [nbformat.v4.new_code_cell("#" * 40_000 + f"\n{i}") for i in range(13)]
    with pytest.raises(NotThisLab, match=r"520,\d{3} characters; at most 500,000 are read: delete or shorten"):
        rebuild(notebook, manifest(toy))
