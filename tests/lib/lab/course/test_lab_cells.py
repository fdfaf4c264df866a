"""Which cells of a notebook are the lab's, by the notebook on disk."""

import json
import linecache

import pytest
from threeloops.lab.checking import wall
from threeloops.lab.course import lab_cells

CELLS = {
    "setup": ("def of_lab(x):\n    return x", {"tags": ["setup"], "nbgrader": {"locked": True, "solution": False}}),
    "demo": ("def draw():\n    pass", {"tags": ["demo"]}),
    "answer": ("def answer():\n    raise NotImplementedError()", {"nbgrader": {"locked": False, "solution": True}}),
    "free": ("def helper():\n    pass", {}),
}


def cell(name, text):
    """Let a text be the cell of this number, as ipykernel compiles it."""
    file = f"/tmp/ipykernel_1/{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return file


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    folder = tmp_path / "work" / "03_triton_fusion"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(lab_cells, "in_kernel", lambda: True)
    cells = [
        {"cell_type": "code", "source": text.splitlines(keepends=True), "metadata": metadata}
        for text, metadata in CELLS.values()
    ]
    path = folder / "03_triton_fusion.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


@pytest.mark.parametrize("name", CELLS)
def test_setup_and_demo_cells_are_the_labs(notebook, name):
    assert lab_cells.is_of_lab(cell(name, CELLS[name][0] + "\n")) == (name in ("setup", "demo"))


def test_a_changed_cell_is_the_readers(notebook):
    assert not lab_cells.is_of_lab(cell("changed", CELLS["setup"][0] + " + 1"))


@pytest.mark.parametrize("broken", ["", "[]", '{"cells": [{}]}', '{"cells": 3}', '{"cells": [[]]}'])
def test_without_a_readable_notebook_all_cells_are_the_readers(notebook, broken):
    notebook.write_text(broken)
    assert not lab_cells.is_of_lab(cell("setup", CELLS["setup"][0]))
    notebook.unlink()
    assert not lab_cells.is_of_lab(cell("setup", CELLS["setup"][0]))


def test_a_function_is_the_labs_if_its_cell_is(notebook, monkeypatch):
    main: dict[str, object] = {}
    for name in ("setup", "answer"):
        exec(compile(CELLS[name][0], cell(name, CELLS[name][0]), "exec"), main)
    monkeypatch.setattr("sys.modules", {**__import__("sys").modules, "__main__": type("Main", (), main)})
    assert wall.is_of_lab("of_lab")
    assert not wall.is_of_lab("answer")
    assert not wall.is_of_lab("nothing")
