"""A reader's folder beside the course's solutions, with one exercise."""

import linecache
import sys

import pytest
from threeloops.lab.answers import debrief as debrief_module
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
    for state in (gate._happened, gate._waiting, debrief_module._facts, debrief_module._parts):
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
