"""A student's copy: made once, never overwritten, and brought up to a newer release without losing a keystroke."""

import json
import os
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat import from_dict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.release.merge import merge
from threeloops_grader.release.release import release
from threeloops_grader.release.student_copies import start, update
from toy_course import DIVES, SOURCE, add_data, add_dives, read

ANSWER = "def mean(values):\n    return sum(values) / len(values)"


@pytest.fixture
def started(toy):
    """The toy, released, and a student's fresh copy of it."""
    release([toy])
    start(toy)
    return toy


def release_with(lab, *edits):
    """Release the toy's source with some texts replaced."""
    text = SOURCE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    lab.source.write_text(text)
    release([lab])


def cell_of(notebook, name):
    return next(cell for cell in notebook.cells if cell.id == name)


def rewrite(lab, change):
    """Let a function change the student's notebook, as JupyterLab saves it."""
    notebook = read(lab.work)
    change(notebook)
    nbformat.write(notebook, lab.work)


def answer_mean(notebook):
    cell_of(notebook, "mean").source = ANSWER
    cell_of(notebook, "mean").outputs = [new_output("stream", text="run")]


def everything_below(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_start_copies_the_released_lab_with_its_data(toy):
    release([toy])
    assert start(toy)
    assert everything_below(toy.work.parent) == everything_below(toy.released.parent)


def test_a_second_start_touches_nothing(started):
    rewrite(started, answer_mean)
    before = everything_below(started.root / "work")
    assert not start(started)
    assert everything_below(started.root / "work") == before


def test_start_gives_back_a_removed_notebook_and_keeps_the_other_files(started):
    started.work.unlink()
    (started.work.parent / "data" / "samples.txt").write_text("mine")
    (started.work.parent / "notes.md").write_text("mine")
    assert start(started)
    assert started.work.read_bytes() == started.released.read_bytes()
    assert (started.work.parent / "data" / "samples.txt").read_text() == "mine"
    assert (started.work.parent / "notes.md").read_text() == "mine"


def test_start_before_a_release_says_what_to_run_and_makes_nothing(toy):
    with pytest.raises(LabError, match="has not been released; run `threeloops release`"):
        start(toy)
    assert not (toy.root / "work").exists()


def test_a_start_that_is_cut_short_leaves_no_half_copy_and_can_be_repeated(toy, monkeypatch):
    release([toy])
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        start(toy)
    assert not toy.work.parent.exists()
    monkeypatch.undo()
    assert start(toy)
    assert sorted(p.name for p in (toy.root / "work").iterdir()) == [".base", "90_toy"]


def test_update_without_a_newer_release_changes_no_byte(started):
    rewrite(started, answer_mean)
    before = everything_below(started.work.parent)
    result = update(started)
    assert "up to date" in result.message and result.backup is None
    assert everything_below(started.work.parent) == before


def test_update_before_start_says_what_to_run(toy):
    release([toy])
    with pytest.raises(LabError, match="`threeloops start 90_toy` makes it"):
        update(toy)


@pytest.mark.parametrize(
    "damage",
    [
        b"not json",
        b"",
        b"[1, 2]",
        b'{"nbformat": 4}',
        b"\xff\xfe\x00",
        b'{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}',
    ],
)
def test_a_copy_that_is_no_notebook_is_reported_and_not_touched(started, damage):
    started.work.write_bytes(damage)
    release_with(started, ("Add them up.", "Sum them."))
    before = everything_below(started.root / "work")
    with pytest.raises(LabError, match="nothing was changed"):
        update(started)
    assert everything_below(started.root / "work") == before


def test_answers_and_their_outputs_survive_and_untouched_text_becomes_the_new_text(started):
    rewrite(started, answer_mean)
    release_with(started, ("What is the middle", "Where is the middle"), ("mean of the samples", "the samples' mean"))
    before = started.work.read_bytes()
    result = update(started)
    after = read(started.work)
    assert cell_of(after, "mean").source == ANSWER and cell_of(after, "mean").outputs[0].text == "run"
    assert "Where is the middle" in after.cells[0].source
    assert "the samples' mean" in cell_of(after, "mean_test").source
    assert [c.source for c in after.cells if c.id != "mean"] == [
        c.source for c in read(started.released).cells if c.id != "mean"
    ]
    assert result.backup.read_bytes() == before
    release_name = read(started.released).metadata.threeloops.release
    assert result.backup.name == f"90_toy.before-{release_name}.ipynb"


def test_a_started_answer_is_kept_when_its_starter_code_changes_and_an_untouched_one_is_renewed(started):
    rewrite(started, answer_mean)
    release_with(started, ("mean(values):", "mean(numbers):"), ("rescale(values, top):", "rescale(xs, top):"))
    result = update(started)
    after = read(started.work)
    assert cell_of(after, "mean").source == ANSWER
    assert "def rescale(xs, top):" in cell_of(after, "rescale").source
    assert result.merged.conflicts == ["mean"] and "you and the release both changed cell mean" in result.message


def test_cells_that_the_student_added_stay_behind_their_neighbour(started):
    def add(notebook):
        notebook.cells.insert(0, new_markdown_cell("My name", id="first"))
        position = next(i for i, c in enumerate(notebook.cells) if c.id == "mean")
        notebook.cells.insert(position + 1, new_code_cell("mean([1])", id="tryout"))
        notebook.cells.append(new_code_cell("done = True", id="last"))

    rewrite(started, add)
    release_with(started, ("# # A toy", "# # The toy"), ("Add them up.", "Sum them."))
    update(started)
    ids = [cell.id for cell in read(started.work).cells]
    assert ids[0] == "first" and ids[-1] == "last" and ids[ids.index("tryout") - 1] == "mean"


def test_a_note_behind_replaced_prose_stays_behind_the_new_prose(started):
    rewrite(started, lambda nb: nb.cells.insert(1, new_markdown_cell("A note on the question", id="note")))
    release_with(started, ("What is the middle", "Where is the middle"))
    update(started)
    cells = read(started.work).cells
    assert "Where is the middle" in cells[0].source and cells[1].id == "note"


def test_prose_that_the_student_edited_stays_beside_the_new_one(started):
    def annotate(notebook):
        notebook.cells[0].source += "\n\nMine: the median."

    rewrite(started, annotate)
    release_with(started, ("What is the middle", "Where is the middle"))
    update(started)
    sources = "\n---\n".join(cell.source for cell in read(started.work).cells)
    assert "Mine: the median." in sources and "Where is the middle" in sources


def test_a_cell_that_the_release_dropped_goes_unless_the_student_wrote_in_it(started):
    question = "# In your own words: when is a mean a poor summary?\n"
    demo = '# %% tags=["demo"] jupyter={"source_hidden": true}\n'
    demo += 'hint("mean", "Add them up.", "Divide by how many there are.")\n'

    def write_in_hint(notebook):
        next(c for c in notebook.cells if c.source.startswith("hint")).source = "print('mine')"

    rewrite(started, write_in_hint)
    release_with(started, (demo, ""), (question, "# Another question.\n"))
    update(started)
    sources = [cell.source for cell in read(started.work).cells]
    assert "print('mine')" in sources and "Another question." in sources
    assert not any("poor summary" in source for source in sources)


def test_prose_that_the_student_deleted_stays_deleted_and_deleted_tests_come_back(started):
    prose = read(started.work).cells[3].id

    def delete(notebook):
        notebook.cells = [c for c in notebook.cells if c.id not in (prose, "mean_test")]

    rewrite(started, delete)
    release_with(started, ("Add them up.", "Sum them."))
    update(started)
    ids = [cell.id for cell in read(started.work).cells]
    assert prose not in ids and ids.index("mean_test") > ids.index("mean")


def test_new_points_reach_a_cell_whose_text_did_not_change(started):
    rewrite(started, answer_mean)
    release_with(started, ('"points": 40', '"points": 45'), ('"points": 15', '"points": 10'))
    update(started)
    after = read(started.work)
    assert cell_of(after, "mean_test").metadata.nbgrader.points == 45
    assert cell_of(after, "mean").source == ANSWER
    assert after.metadata.threeloops == read(started.released).metadata.threeloops


def test_a_notebook_whose_editor_dropped_the_cell_ids_is_updated_all_the_same(started):
    rewrite(started, answer_mean)
    raw = json.loads(started.work.read_text())
    for cell in raw["cells"]:
        del cell["id"]
    started.work.write_text(json.dumps(raw | {"nbformat_minor": 4}))
    release_with(started, ("What is the middle", "Where is the middle"))
    update(started)
    after = read(started.work)
    assert [c.id for c in after.cells] == [c.id for c in read(started.released).cells]
    assert cell_of(after, "mean").source == ANSWER


def test_copies_of_an_answer_cell_are_all_kept_and_every_id_is_unique(started):
    def copy_answer(notebook):
        answer_mean(notebook)
        duplicate = nbformat.from_dict(cell_of(notebook, "mean").copy())
        duplicate.source = "def mean(values):\n    return 0.0  # an earlier try"
        notebook.cells.insert(6, duplicate)

    rewrite(started, copy_answer)
    release_with(started, ("Add them up.", "Sum them."))
    update(started)
    cells = read(started.work).cells
    sources = [cell.source for cell in cells]
    assert ANSWER in sources and any("an earlier try" in source for source in sources)
    assert len({cell.id for cell in cells}) == len(cells)


def test_every_update_keeps_a_backup_of_its_own(started):
    for text in ("Sum them.", "Total them."):
        rewrite(started, lambda nb, text=text: nb.cells.append(new_markdown_cell(text)))
        release_with(started, ("Add them up.", text))
        assert update(started).backup is not None
    assert len(list(started.work.parent.glob("90_toy.before-*.ipynb"))) == 2


def test_data_is_renewed_where_the_student_did_not_edit_it(started):
    def replace_sample(text):
        (started.data / "MANIFEST.json").write_text("[]")
        add_data(started, "samples.txt", text)
        release([started])

    copied = started.work.parent / "data" / "samples.txt"
    replace_sample(b"1.0\n2.0\n9.0\n")
    result = update(started)
    assert copied.read_bytes() == b"1.0\n2.0\n9.0\n" and "data/samples.txt" in result.data
    copied.write_text("mine")
    replace_sample(b"3.0\n2.0\n9.0\n")
    result = update(started)
    assert copied.read_text() == "mine" and "you changed data/samples.txt: yours was kept" in result.message


def test_an_update_cut_short_leaves_the_old_notebook_whole_and_is_repeated(started, monkeypatch):
    rewrite(started, answer_mean)
    release_with(started, ("What is the middle", "Where is the middle"))
    before = started.work.read_bytes()
    replace = Path.replace

    def full_disk(path, target):
        if Path(target) == started.work:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        update(started)
    assert started.work.read_bytes() == before
    assert not [name for name in os.listdir(started.work.parent) if name.endswith(".tmp")]
    monkeypatch.undo()
    update(started)
    assert "Where is the middle" in started.work.read_text() and cell_of(read(started.work), "mean").source == ANSWER


def test_without_the_remembered_release_everything_counts_as_the_students(started):
    rewrite(started, answer_mean)
    (started.root / "work" / ".base" / "90_toy.ipynb").unlink()
    release_with(started, ("What is the middle", "Where is the middle"))
    update(started)
    sources = "\n".join(cell.source for cell in read(started.work).cells)
    assert ANSWER in sources and "What is the middle" in sources and "Where is the middle" in sources


TEXTS = st.sampled_from(["a", "b", "c", "d"])
NOTEBOOKS = st.dictionaries(st.sampled_from("pqrstu"), TEXTS, max_size=6)


def notebook_of(cells):
    """Made of plain data: nbformat's own functions check each cell against its schema, which takes most of the time."""
    empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    return from_dict(
        {
            "cells": [empty | {"id": key, "source": text} for key, text in cells.items()],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(base=NOTEBOOKS, student=NOTEBOOKS, new=NOTEBOOKS)
def test_whatever_the_three_notebooks_hold_no_text_of_the_students_is_lost(base, student, new):
    merged = merge(notebook_of(base), notebook_of(student), notebook_of(new)).notebook
    result = {cell.id: cell.source for cell in merged.cells}
    assert len(result) == len(merged.cells)
    for key, text in student.items():
        if base.get(key) != text:
            assert result[key] == text
        elif key in new:
            assert result[key] == new[key]
        else:
            assert key not in result
    for key in new.keys() - student.keys():
        assert (key in result) == (key not in base)
    assert [cell.id for cell in merged.cells if cell.id in new] == [key for key in new if key in result]


@given(base=NOTEBOOKS, new=NOTEBOOKS)
def test_merging_into_an_untouched_copy_gives_the_new_release(base, new):
    merged = merge(notebook_of(base), notebook_of(base), notebook_of(new)).notebook
    assert [(cell.id, cell.source) for cell in merged.cells] == list(new.items())


@given(base=NOTEBOOKS, student=NOTEBOOKS, new=NOTEBOOKS)
def test_merging_the_same_release_twice_changes_nothing_more(base, student, new):
    once = merge(notebook_of(base), notebook_of(student), notebook_of(new)).notebook
    twice = merge(notebook_of(new), once, notebook_of(new)).notebook
    assert [(c.id, c.source) for c in twice.cells] == [(c.id, c.source) for c in once.cells]


def test_deep_dives_are_copied_and_updated_like_the_core(started):
    dives = add_dives(started)
    release([started])
    first = update(started)
    assert dives.work.exists() and first.data == ["90_toy_dives.ipynb"]
    notebook = read(dives.work)
    notebook.cells[1].outputs = [new_output("stream", text="the median is 2.0")]
    notebook.cells.append(new_code_cell("my_own = 1"))
    nbformat.write(notebook, dives.work)
    add_dives(started, DIVES.replace("What does a median see?", "What does a median not see?"))
    release([started])
    second = update(started)
    after = read(dives.work)
    assert "not see?" in after.cells[0].source and after.cells[-1].source == "my_own = 1"
    assert second.backup is None and second.dives.backup.exists()
    assert "90_toy_dives.ipynb is updated: 0 cells renewed, 1 added, 1 removed" in second.message
    again = update(started)
    assert "90_toy.ipynb is up to date" in again.message and "90_toy_dives.ipynb is up to date" in again.message


def test_deep_dives_that_were_deleted_come_back(started):
    dives = add_dives(started)
    release([started])
    update(started)
    dives.work.unlink()
    assert update(started).data == ["90_toy_dives.ipynb"] and dives.work.exists()
