"""The rebuilt submission: the lab's own cells, the student's words, and a note for everything that was restored."""

import copy
import json

import pytest
from grading import fresh_course, grade, needs, points, said, submission
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell
from threeloops_grader.authoring.manifest import Kind, manifest
from threeloops_grader.submissions.reading import parse
from threeloops_grader.submissions.rebuild import _MAX_FREE_CELLS, rebuild
from threeloops_grader.submissions.submitted import _MAX_CELLS, NotThisLab
from toy_course import make_course

LOCKED = {"grade": True, "locked": True, "points": 40, "schema_version": 3, "solution": False, "task": False}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("manifest")) as lab:
        yield lab


def cell_of(notebook, name):
    return next(c for c in notebook.cells if c.id == name)


def plain(notebook):
    return json.loads(json.dumps(notebook))


def names(rebuilt):
    return [c.id for c in rebuilt.notebook.cells]


def test_the_reference_is_rebuilt_as_it_is(lab):
    trusted = manifest(lab)
    rebuilt = rebuild(lab.master(), trusted)
    assert rebuilt.notes == []
    assert rebuilt.reflection == "complete"
    assert [(c.id, c.cell_type, c.source, c.metadata) for c in rebuilt.notebook.cells] == [
        (c.id, c.cell_type, c.source, c.metadata) for c in lab.master().cells
    ]


def test_the_manifest_knows_kinds_points_and_exports(lab):
    trusted = manifest(lab)
    assert [(e.id, e.tests, e.points) for e in trusted.exercises] == [
        ("mean", ("mean_test",), 40.0),
        ("rescale", ("rescale_test_values", "rescale_test_zeros"), 60.0),
    ]
    assert trusted.exports == ("TINY", "mean", "rescale")
    assert trusted.max_score == 100.0
    assert [k for k in trusted.kinds.values() if k is not Kind.PROSE] == [
        *(
            Kind.SETUP,
            Kind.DEMO,
            Kind.SOLUTION,
            Kind.DEMO,
            Kind.TEST,
            Kind.SOLUTION,
            Kind.TEST,
            Kind.TEST,
            Kind.REFLECTION,
        )
    ]


def without(notebook, *gone):
    notebook.cells = [c for c in notebook.cells if c.id not in gone]
    return notebook


def edited(notebook, name, **changes):
    cell_of(notebook, name).update(changes)
    return notebook


def described(notebook, name, **changes):
    cell_of(notebook, name).metadata.nbgrader.update(changes)
    return notebook


def tagged(notebook, *tags):
    for cell in notebook.cells:
        cell.metadata.tags = list(tags)
    return notebook


def twice(notebook, name, source):
    """A second cell of the same name, in front of the first one."""
    again = copy.deepcopy(cell_of(notebook, name))
    again.source = source
    notebook.cells.insert(0, again)
    return notebook


def locked(notebook, source, grade_id="bonus"):
    notebook.cells.append(new_code_cell(source, metadata={"nbgrader": {**LOCKED, "grade_id": grade_id}}))
    return notebook


def undescribed(notebook):
    for cell in notebook.cells:
        cell.metadata = {}
    return notebook


FULL = {"mean": 40.0, "rescale": 60.0}
NO_MEAN = {"mean": 0.0, "rescale": 60.0}
CHANGES = {
    "test cells deleted": (
        lambda nb: without(nb, "mean_test", "rescale_test_values"),
        FULL,
        "mean_test: this test cell was missing and was restored from the lab",
    ),
    "setup deleted": (lambda nb: without(nb, "setup"), FULL, "setup: this setup cell was missing"),
    "setup edited": (
        lambda nb: edited(nb, "setup", source="raise SystemExit"),
        FULL,
        "setup: this setup cell is not that of the installed lab",
    ),
    "a test edited": (
        lambda nb: edited(nb, "mean_test", source="40"),
        FULL,
        "mean_test: this test cell is not that of the installed lab",
    ),
    "a test edited beside a wrong answer": (
        lambda nb: edited(edited(nb, "mean_test", source="40"), "mean", source="def mean(values): return 3.0"),
        NO_MEAN,
        "mean_test: this test cell is not that of the installed lab",
    ),
    "a test twice": (
        lambda nb: twice(nb, "mean_test", "40"),
        FULL,
        "mean_test: 2 cells with this name; the lab's own was used",
    ),
    "an answer twice, the wrong one first": (
        lambda nb: twice(nb, "mean", "def mean(values): return 3.0"),
        FULL,
        "mean: 2 cells have this answer's name, so the cell was split or copied: 2 count together",
    ),
    "an answer deleted": (
        lambda nb: without(nb, "mean"),
        NO_MEAN,
        "mean: the answer's cell is missing from the submission",
    ),
    "an answer emptied": (lambda nb: edited(nb, "mean", source=""), NO_MEAN, "'mean' is not defined"),
    "an answer made markdown": (
        lambda nb: edited(nb, "mean", cell_type="markdown"),
        FULL,
        "mean: its type was changed to 'markdown'; it counts as code",
    ),
    "a test made raw": (
        lambda nb: edited(nb, "mean_test", cell_type="raw"),
        FULL,
        "mean_test: its type was changed to 'raw'",
    ),
    "points raised": (
        lambda nb: described(nb, "mean_test", points=4000),
        FULL,
        "mean_test: the cell's grading metadata was changed (points); the lab's own was used",
    ),
    "a test unlocked and called a solution": (
        lambda nb: described(nb, "mean_test", locked=False, solution=True, grade=False),
        FULL,
        "mean_test: the cell's grading metadata was changed (grade, solution, locked)",
    ),
    "an answer called a test": (
        lambda nb: described(edited(nb, "mean", source="40"), "mean", grade=True, points=40, solution=False),
        NO_MEAN,
        "mean: the cell's grading metadata was changed",
    ),
    "every cell tagged to be skipped": (
        lambda nb: tagged(nb, "skip-execution", "raises-exception", "remove_cell"),
        FULL,
        "mean_test: the cell's tags were changed; the lab's own were used",
    ),
    "an answer tagged as setup": (
        lambda nb: tagged(edited(nb, "mean", source="SAMPLES = [3.0]\ncheck = None"), "setup"),
        NO_MEAN,
        "mean: the cell's tags were changed",
    ),
    "a locked cell of their own": (
        lambda nb: locked(edited(nb, "mean", source=""), "print('40.0')\n40.0"),
        NO_MEAN,
        "'mean' is not defined",
    ),
    "a locked cell that would tell the sides apart": (
        lambda nb: locked(nb, "from threeloops_grader.wall import proxy\nraise SystemExit", "setup_2"),
        FULL,
        "",
    ),
    "all nbgrader metadata gone": (undescribed, FULL, "mean_test: the cell's grading metadata was changed"),
    "turned upside down": (
        lambda nb: nb.update(cells=nb.cells[::-1]) or nb,
        FULL,
        "",
    ),
    "papermill's parameters": (
        lambda nb: nb.cells.insert(0, new_code_cell("SAMPLES = [3.0]", metadata={"tags": ["parameters"]})) or nb,
        FULL,
        "",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_lab_owns_is_restored_and_the_answer_judged_on_its_merits(lab, name):
    needs("bwrap")
    change, earned, note = CHANGES[name]
    record = grade(lab, parse(json.dumps(change(submission(lab))).encode()), "bwrap")
    assert points(record) == earned, said(record)
    assert record.max_score == 100.0
    assert note in said(record)


@pytest.mark.parametrize("name", CHANGES)
def test_the_lab_decides_which_cells_there_are(lab, name):
    trusted = manifest(lab)
    rebuilt = rebuild(CHANGES[name][0](lab.master()), trusted)
    own = [c for c in rebuilt.notebook.cells if trusted.kind(c) is not Kind.FREE]
    written = {Kind.SOLUTION, Kind.REFLECTION}
    assert [(c.id, c.cell_type, c.metadata) for c in own] == [
        (c.id, c.cell_type, c.metadata) for c in trusted.master.cells
    ]
    for cell, master in zip(own, trusted.master.cells, strict=True):
        assert cell.source == master.source or trusted.kind(cell) in written
    assert all(c.metadata == {} for c in rebuilt.notebook.cells if trusted.kind(c) is Kind.FREE)


def test_a_released_test_cell_counts_as_unedited(lab):
    notebook = lab.master()
    source = cell_of(notebook, "mean_test").source
    begin, end = source.index("    ### BEGIN HIDDEN"), source.index("    ### END HIDDEN TESTS")
    cell_of(notebook, "mean_test").source = (source[:begin] + source[end:].partition("\n")[2]).rstrip()
    assert rebuild(notebook, manifest(lab)).notes == []


def test_own_cells_stay_where_they_were_as_plain_text(lab):
    notebook = lab.master()
    at = names_of(notebook).index("mean")
    metadata = {"nbgrader": {**LOCKED, "grade_id": "mine"}, "tags": ["setup"]}
    notebook.cells[at + 1 : at + 1] = [
        new_code_cell("a = 1", metadata=metadata),
        new_markdown_cell("b"),
        new_raw_cell("c"),
    ]
    notebook.cells.insert(0, new_code_cell("first = 1", outputs=[], execution_count=7))
    rebuilt = rebuild(notebook, manifest(lab))
    at = names(rebuilt).index("mean")
    around = [(c.cell_type, c.source, c.metadata) for c in rebuilt.notebook.cells[at + 1 : at + 4]]
    assert around == [("code", "a = 1", {}), ("markdown", "b", {}), ("markdown", "c", {})]
    assert rebuilt.notebook.cells[0].source == "first = 1"
    assert len(set(names(rebuilt))) == len(names(rebuilt))


def names_of(notebook):
    return [c.id for c in notebook.cells]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "incomplete"), ("YOUR ANSWER HERE", "incomplete"), (" \n", "incomplete"), ("Outliers pull.", "complete")],
)
def test_a_reflection_is_complete_or_not(lab, text, expected):
    assert rebuild(edited(lab.master(), "reflection", source=text), manifest(lab)).reflection == expected
    assert rebuild(without(lab.master(), "reflection"), manifest(lab)).reflection == "incomplete"


@pytest.mark.parametrize(
    ("notebook", "says"),
    [
        (None, "holds no cells"),
        ({}, "holds no cells"),
        ({"cells": {}}, "holds no cells"),
        ({"cells": []}, "is empty"),
        ({"cells": [1, "x"]}, "is empty"),
        ({"cells": [{"cell_type": "code", "source": "1"}]}, "holds no answer cell of lab 90_toy"),
        ({"cells": [{}], "metadata": {"threeloops": {"lab": "01_roofline"}}}, "notebook of lab '01_roofline'"),
        ({"cells": [{}], "metadata": {"threeloops": {"lab": ["90_toy"]}}}, "holds no answer cell"),
        ({"cells": [{}], "metadata": {"threeloops": 3}}, "holds no answer cell"),
        ({"cells": [{"id": "mean"}] * (_MAX_CELLS + 1)}, f"at most {_MAX_CELLS:,} are read"),
        (
            {"cells": [{"id": "mean"}] + [{"source": "1"}] * (_MAX_FREE_CELLS + 1)},
            f"more than {_MAX_FREE_CELLS} extra cells",
        ),
    ],
)
def test_what_is_not_this_lab_says_so(lab, notebook, says):
    with pytest.raises(NotThisLab, match=says):
        rebuild(notebook, manifest(lab))


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ids = st.sampled_from(
    ["setup", "mean", "mean_test", "rescale", "rescale_test_values", "reflection", "free-0", "mean-part-2", "x"]
)
descriptions = st.fixed_dictionaries({"grade_id": ids | junk}, optional={"points": junk, "locked": junk, "grade": junk})
described_cells = st.fixed_dictionaries(
    {},
    optional={
        "id": ids | junk,
        "cell_type": st.sampled_from(["code", "markdown", "raw", "x"]) | junk,
        "source": st.text(max_size=9)
        | st.sampled_from(["def f(:", "x = (", " )", "    x", "def f():\n  1"])
        | st.lists(st.text(max_size=3) | junk, max_size=3)
        | junk,
        "metadata": junk
        | st.fixed_dictionaries(
            {},
            optional={
                "tags": st.lists(st.sampled_from(["setup", "demo"])) | junk,
                "nbgrader": junk | descriptions,
            },
        ),
        "outputs": junk,
    },
)


@given(cells=st.lists(described_cells | junk, max_size=6), metadata=junk)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_file_holds_it_is_rebuilt_or_refused(lab, cells, metadata):
    """Rebuilding never fails otherwise, changes nothing of its argument, and a second time changes nothing at all."""
    trusted, given_notebook = manifest(lab), {"cells": cells, "metadata": metadata}
    before = repr(given_notebook)
    try:
        rebuilt = rebuild(given_notebook, trusted)
    except NotThisLab:
        return
    finally:
        assert repr(given_notebook) == before
    again = rebuild(plain(rebuilt.notebook), trusted)
    assert plain(again.notebook) == plain(rebuilt.notebook)
    assert again.notes == []
    assert again.reflection == rebuilt.reflection
    json.dumps(rebuilt.notebook, ensure_ascii=False).encode()
    owned = [c.id for c in rebuilt.notebook.cells if trusted.kind(c) is not Kind.FREE]
    assert owned == names_of(trusted.master)


@given(st.lists(described_cells | junk, max_size=4), junk)
def test_whatever_the_bytes_parse_keeps_what_rebuild_reads(cells, metadata):
    text = json.dumps({"cells": cells, "metadata": metadata, "more": [[]]})
    parsed = parse(text.encode())
    assert set(parsed) == {"cells", "metadata"}
    assert len(parsed.cells) == sum(isinstance(c, dict) for c in cells)
    assert all(isinstance(c.metadata, dict) and "outputs" not in c for c in parsed.cells)


def test_a_changed_source_makes_a_new_manifest(tmp_path):
    lab = make_course(tmp_path)
    assert manifest(lab) is manifest(lab)
    lab.source.write_text(lab.source.read_text().replace('"points": 40', '"points": 30'))
    assert manifest(lab).max_score == 90.0
