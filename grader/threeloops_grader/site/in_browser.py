"""Exercises that a reader can try in the page: those whose visible checks need nothing but NumPy.

`site/try_it.py` runs in the page, under Pyodide, in a folder that is made here: the lab's cells as released, and the
files that its preparation and its checks read.
"""

import html
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import nbformat
import threeloops
from nbformat import NotebookNode

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import SETUPS, Kind, kind_of, manifest, split_test_id

__all__ = ["add_buttons", "bundle"]

_DRIVER = Path(__file__).with_name("try_it.py")
_LIBRARY = Path(threeloops.__file__).parent
_MOST_SECONDS = 3.0
"""The longest that the checks of an exercise may take here. Python in a page is several times slower."""


def bundle(lab: Lab) -> tuple[list[str], bytes]:
    """Return the exercises that can be tried in a page, and a zip file of the folder in which they are checked."""
    cells = _cells(nbformat.read(lab.released, as_version=4))
    answers = {exercise.id: manifest(lab).text(exercise.id) for exercise in manifest(lab).exercises}
    with tempfile.TemporaryDirectory(prefix="threeloops-") as name:
        folder = Path(name).resolve()
        (folder / "lab.json").write_text(json.dumps(cells), encoding="utf-8")
        if lab.data.is_dir():
            (folder / "data").symlink_to(lab.data)
        done = subprocess.run(
            [sys.executable, str(_DRIVER)],
            input=json.dumps({"answers": answers, "most_seconds": _MOST_SECONDS}),
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        needed = json.loads(done.stdout)
    files = {Path(path) for path in [*needed["modules"], *needed["opened"]] if Path(path).is_file()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lab.json", json.dumps(cells))
        archive.write(_DRIVER, "try_it.py")
        for path in sorted(files):
            if path.suffix == ".pyc":
                continue
            if path.is_relative_to(_LIBRARY):
                archive.write(path, path.relative_to(_LIBRARY.parent))
            elif path.is_relative_to(lab.data.resolve()):
                archive.write(path, Path("data") / path.relative_to(lab.data.resolve()))
    return needed["exercises"], packed.getvalue()


def _cells(released: NotebookNode) -> dict[str, Any]:
    """Return the cells of a released notebook that its checks need."""
    exercises: dict[str, dict[str, Any]] = {}
    setup = []
    for cell in released.cells:
        kind = kind_of(cell)
        if kind in SETUPS:
            setup.append(cell.source)
        elif kind is Kind.SOLUTION:
            exercises[cell.id] = {"id": cell.id, "starter": cell.source, "tests": []}
        elif kind is Kind.TEST:
            exercises[split_test_id(cell.id)[0]]["tests"].append(cell.source)
    return {"setup": setup, "exercises": list(exercises.values())}


def add_buttons(page: NotebookNode, lab: Lab, exercises: list[str], pyodide: str) -> None:
    """Put a button below each of these exercises of a page. `pyodide` is the address of Pyodide's folder."""
    for cell in page.cells:
        if cell.get("id") in exercises:
            facts = {"lab": lab.slug, "exercise": cell.id, "pyodide": pyodide, "starter": cell.source}
            attributes = " ".join(f'data-{name}="{html.escape(text, quote=True)}"' for name, text in facts.items())
            text = f'<div class="tl-try" {attributes}></div>'
            cell.outputs = [nbformat.v4.new_output("display_data", {"text/html": text})]
