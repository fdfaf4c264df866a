"""An answer whose cell was split, copied, moved or merged counts, or the notebook's notes name it: never a silent 0."""

import ast
import copy
import json

import pytest
from grading import SANDBOXES, fresh_course, grade, needs, points, said, submission
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell
from threeloops_grader.authoring.manifest import Kind, manifest
from threeloops_grader.authoring.regions import without
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.submissions import python_text
from threeloops_grader.submissions.parse import parse
from threeloops_grader.submissions.python_text import parse_alone
from threeloops_grader.submissions.rebuild import rebuild

FULL = {"mean": 40.0, "rescale": 60.0}
NO_MEAN = {"mean": 0.0, "rescale": 60.0}
MEAN = '''\
START = 0.0


def mean(values):
    """The arithmetic mean."""
    if not values:
        raise ValueError("""\
values = []: expected
at least one number""")
    return (START + sum(values)) / len(values)
'''
WRONG = "def mean(values):\n    return 3.0\n"
STUB_BODY = "raise NotImplementedError()"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("cells")) as lab:
        yield lab


@pytest.fixture
def notebook(lab):
    return submission(lab, mean=MEAN)


def place(notebook, name):
    return next(at for at, cell in enumerate(notebook.cells) if cell.id == name)


def split(notebook, name, *cuts, editor="jupyterlab"):
    """Split a cell as an editor does. JupyterLab gives all parts the metadata, VS Code the first part, and the classic
    notebook the last; each drops the line ends at a cut."""
    at = place(notebook, name)
    cell = notebook.cells[at]
    borders = [0, *sorted(cuts), len(cell.source)]
    texts = [cell.source[i:j].strip("\n") for i, j in zip(borders, borders[1:], strict=False)]
    named = {"jupyterlab": range(len(texts)), "vscode": [0], "classic": [len(texts) - 1]}[editor]
    parts = [copy.deepcopy(cell) if n in named else new_code_cell("") for n in range(len(texts))]
    for n, (part, text) in enumerate(zip(parts, texts, strict=True)):
        part.source = text
        part.id = name if n == named[0] else f"part{n}"
    notebook.cells[at : at + 1] = parts
    return notebook


def pasted(notebook, name, at, source):
    """A copy of a cell, edited, at another place."""
    cell = copy.deepcopy(notebook.cells[place(notebook, name)])
    cell.source = source
    cell.id = f"copy{at}"
    notebook.cells.insert(at, cell)
    return notebook


def edited(notebook, name, source):
    notebook.cells[place(notebook, name)].source = source
    return notebook


def stub(lab):
    return without(lab.master().cells[place(lab.master(), "mean")].source, "SOLUTION")


def program(rebuilt, name):
    """The texts that run as an answer, as one program."""
    texts = [c.source for c in rebuilt.notebook.cells if c.id == name or c.id.startswith(f"{name}-part-")]
    return ast.dump(ast.parse("\n".join(texts)))


def line_ends(text):
    return [at for at, character in enumerate(text) if character == "\n"]


@pytest.mark.parametrize("editor", ["jupyterlab", "vscode", "classic"])
@pytest.mark.parametrize("cut", line_ends(MEAN)[:-1])
def test_an_answer_that_was_split_between_any_two_lines_is_the_same_program(lab, notebook, editor, cut):
    """Also within a function, within a text of several lines, and where one half carries no name."""
    rebuilt = rebuild(split(notebook, "mean", cut, editor=editor), manifest(lab))
    own = [c.source for c in rebuilt.notebook.cells if c.cell_type == "code" and c.id.startswith("free-")]
    if own:  # a half that parses alone and has no name runs in its place, as a cell of the student's own
        assert editor != "jupyterlab" and rebuilt.notes == []
        assert "def mean" in "".join(own) or own == ["START = 0.0"]
    else:
        assert program(rebuilt, "mean") == ast.dump(ast.parse(MEAN))
        assert any(note.startswith("mean: ") and "split or copied" in note for note in rebuilt.notes)


@given(
    cuts=st.sets(st.integers(1, len(MEAN) - 1), min_size=1, max_size=3), copies=st.lists(st.integers(0, 15), max_size=2)
)
@settings(max_examples=20, deadline=None)
def test_a_split_anywhere_earns_full_points_or_is_named(lab, cuts, copies):
    """Also within a line, and with copies of the answer's first cell anywhere in the notebook."""
    needs("bwrap")
    notebook = split(submission(lab, mean=MEAN), "mean", *cuts)
    for at in copies:
        pasted(notebook, "mean", at, MEAN)
    record = grade(lab, parse(json.dumps(notebook).encode()), "bwrap")
    assert points(record)["rescale"] == 60.0
    count = 1 + len(cuts) + len(copies)
    assert f"mean: {count} cells have this answer's name" in said(record)
    if set(cuts) <= set(line_ends(MEAN)):
        assert points(record) == FULL


ON_THE_WAY = {
    "split within its function": (lambda nb, _: split(nb, "mean", MEAN.index("    return")), FULL, "2 count together"),
    "split, with a trial between the halves": (
        lambda nb, _: split(nb, "mean", MEAN.index("    return")).cells.insert(
            place(nb, "mean") + 1, new_code_cell("print('a trial')")
        ),
        FULL,
        "2 count together",
    ),
    "an old attempt kept above": (
        lambda nb, _: pasted(nb, "mean", place(nb, "mean"), WRONG),
        FULL,
        "2 count together, in the order of the notebook",
    ),
    "an old attempt that does not parse, kept above": (
        lambda nb, _: pasted(nb, "mean", place(nb, "mean"), "def mean(values:\n    retrun 3"),
        FULL,
        "mean: 2 cells have this answer's name",
    ),
    "an old attempt that raises, kept above": (
        lambda nb, _: pasted(nb, "mean", place(nb, "mean"), "raise ValueError('unfinished')"),
        FULL,
        "mean: 2 cells have this answer's name",
    ),
    "a better attempt below": (
        lambda nb, _: edited(pasted(nb, "mean", place(nb, "mean") + 1, MEAN), "mean", WRONG),
        FULL,
        "2 count together",
    ),
    "a worse attempt below, as the notebook would run": (
        lambda nb, _: pasted(nb, "mean", place(nb, "mean") + 1, WRONG),
        NO_MEAN,
        "mean: 2 cells have this answer's name",
    ),
    "an old attempt after the tests": (
        lambda nb, _: pasted(nb, "mean", len(nb.cells), WRONG),
        FULL,
        "1 counts, 1 after the tests runs as your own",
    ),
    "the rest of a split cell moved to the end": (
        lambda nb, _: nb.cells.append(nb.cells.pop(place(split(nb, "mean", MEAN.index("    return")), "mean") + 1)),
        FULL,
        "2 count together",
    ),
    "the answer after the tests, its cell as released": (
        lambda nb, lab: edited(pasted(nb, "mean", len(nb.cells), MEAN), "mean", stub(lab)),
        FULL,
        "1 counts, 1 not run",
    ),
    "the released cell copied below": (
        lambda nb, lab: pasted(nb, "mean", place(nb, "mean") + 1, stub(lab)),
        FULL,
        "1 counts, 1 not run",
    ),
    "the exercise with its tests copied below, and answered there": (
        lambda nb, _: edited(
            pasted(pasted(nb, "mean", len(nb.cells), MEAN), "mean_test", len(nb.cells) + 1, "pass"), "mean", WRONG
        ),
        FULL,
        "mean: 2 cells have this answer's name",
    ),
    "a copy kept as text": (
        lambda nb, _: pasted(nb, "mean", 3, WRONG).cells[3].update(cell_type="markdown"),
        FULL,
        "1 counts, 1 not run",
    ),
    "two answers merged into one cell": (
        lambda nb, _: edited(nb, "mean", f"{MEAN}\n\n{nb.cells.pop(place(nb, 'rescale')).source}"),
        FULL,
        "rescale: the answer's cell is missing",
    ),
    "the reflection split": (
        lambda nb, _: pasted(nb, "reflection", len(nb.cells), "And a median does not."),
        FULL,
        "reflection: 2 cells have this name; their texts count together",
    ),
    # From here on somebody tries to gain by it.
    "a copied test": (
        lambda nb, _: pasted(edited(nb, "mean", WRONG), "mean_test", place(nb, "mean"), "40.0"),
        NO_MEAN,
        "mean_test: 2 cells with this name; the lab's own was used",
    ),
    "a copied setup that would help": (
        lambda nb, _: pasted(edited(nb, "mean", WRONG), "setup", 5, "SAMPLES = [3.0]\ncheck = None"),
        NO_MEAN,
        "setup: 2 cells with this name; the lab's own was used",
    ),
    "a test under the answer's name": (
        lambda nb, _: pasted(edited(nb, "mean", WRONG), "mean", 9, "with check('mean', 'forged'):\n    pass\n40.0"),
        NO_MEAN,
        "mean: 2 cells have this answer's name",
    ),
}


@pytest.mark.parametrize("name", ON_THE_WAY)
def test_cells_that_were_copied_moved_or_merged_on_the_way(lab, notebook, name):
    needs("bwrap")
    change, earned, note = ON_THE_WAY[name]
    change(notebook, lab)
    record = grade(lab, parse(json.dumps(notebook).encode()), "bwrap")
    assert points(record) == earned, said(record)
    assert note in said(record)


@pytest.mark.parametrize("name", ON_THE_WAY)
def test_a_rebuilt_notebook_is_rebuilt_as_it_is(lab, notebook, name):
    trusted = manifest(lab)
    ON_THE_WAY[name][0](notebook, lab)
    once = rebuild(notebook, trusted)
    again = rebuild(once.notebook, trusted)
    assert json.dumps(again.notebook) == json.dumps(once.notebook)
    assert again.notes == []


def test_a_cell_of_the_students_own_stays_where_it_is_beside_a_part_that_moves(lab, notebook):
    split(notebook, "mean", MEAN.index("    return"))
    notebook.cells += [notebook.cells.pop(place(notebook, "mean") + 1), new_code_cell("print(rescale)")]
    rebuilt = rebuild(notebook, manifest(lab)).notebook
    assert program(rebuild(notebook, manifest(lab)), "mean") == ast.dump(ast.parse(MEAN))
    assert rebuilt.cells[-1].source == "print(rescale)"


def test_what_does_not_count_stays_visible(lab, notebook):
    pasted(notebook, "mean", len(notebook.cells), WRONG)
    pasted(notebook, "mean_test", len(notebook.cells), "print('``` my own test')")
    rebuilt = rebuild(notebook, manifest(lab)).notebook
    own = [c for c in rebuilt.cells if manifest(lab).kind(c) is Kind.FREE]
    assert [(c.cell_type, c.source) for c in own if c.cell_type == "code"] == [("code", WRONG)]
    shown = "\n".join(c.source for c in own if c.cell_type == "markdown")
    assert "*Grading:* mean: 2 cells have this answer's name" in shown
    assert "````python\nprint('``` my own test')\n````" in shown


def test_a_trial_below_an_answer_is_no_part_of_it(lab, notebook):
    """It parses alone, or as IPython runs it, without the indentation of its first line."""
    at = place(notebook, "mean") + 1
    notebook.cells[at:at] = [new_code_cell("    mean([1.0])"), new_markdown_cell("That was a trial.")]
    rebuilt = rebuild(notebook, manifest(lab))
    assert rebuilt.notes == []
    assert program(rebuilt, "mean") == ast.dump(ast.parse(MEAN))


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_failing_answer_keeps_the_note_that_it_was_split(lab, notebook, sandbox):
    needs(sandbox)
    record = grade(lab, split(edited(notebook, "mean", "x = (1\ny = 2"), "mean", 6), sandbox)
    assert "mean: 2 cells have this answer's name" in said(record)
    assert "mean: SyntaxError" in said(record)


def test_python_is_told_from_its_fragments():
    texts = [
        "x = 1",
        "    return x",
        "%matplotlib inline\nx = 1",
        "%%time\nx = 1",
        "await x",
        "def f(:",
        "x = (\n 1 % 2\n % 3)",
    ]
    assert parse_alone(texts) == [True, False, True, True, True, False, True]


def test_a_text_that_the_parser_does_not_survive_is_no_python():
    hostile = ["(" * 40_000, "-" * 40_000 + "1", "x" + ".y" * 20_000, "\0", "\ud800", "x = 1\n" * 10_000]
    assert parse_alone(hostile)[:2] == [False, False]
    assert parse_alone(["x = 1", hostile[-1]]) == [True, False], "the second is longer than any cell that is read"


def test_a_machine_that_cannot_parse_costs_nobody_points(monkeypatch):
    monkeypatch.setattr(python_text, "_PROGRAM", "no such program")
    with pytest.raises(MachineFault, match="No such file"):
        parse_alone(["x = 1"])
    monkeypatch.setattr(python_text, "_PATIENCE", 0.0)
    with pytest.raises(MachineFault, match="did not end"):
        parse_alone(["x = 1"])
