"""Where the labs lie, what each is called, and its master notebook.

The only hand-written form of a lab is `solutions/NN_slug/NN_slug.py` (jupytext py:percent with nbgrader's own cell
metadata). `Lab.master()` converts it, with cell ids that depend on content alone: the grade_id where there is one,
else a hash of the text with an ordinal among equal texts, so that an inserted paragraph changes no other id.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # naming a lab must not need it: a machine that only measures may have no nbformat
    from nbformat import NotebookNode

SOLUTIONS, LABS, WORK = "solutions", "labs", "work"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_FOLDER = re.compile(r"(\d\d)_([a-z0-9_]+)")


class LabError(Exception):
    """The lab named on the command line does not exist, or its source breaks a rule of the course."""


def course_root() -> Path:
    """The repository: `$THREELOOPS_ROOT`, else the folder above this package. Absolute: grading changes directories."""
    return Path(os.environ.get("THREELOOPS_ROOT") or Path(__file__).resolve().parents[2]).absolute()


@dataclass(frozen=True)
class Limits:
    """What one submission may use in a graded run; a lab's header overrides single fields."""

    cell_seconds: float = 30.0
    test_seconds: float = 60.0
    notebook_seconds: float = 300.0
    memory_mb: int = 3072
    processes: int = 64
    disk_mb: int = 256
    output_kb: int = 1024


@dataclass(frozen=True)
class Lab:
    """One lab of the course. `slug` is its folder's name (`01_roofline`), `number` the leading two digits."""

    slug: str
    root: Path = field(default_factory=course_root)

    @property
    def number(self) -> int:
        return int(self.slug[:2])

    @property
    def name(self) -> str:
        return self.slug[3:]

    @property
    def folder(self) -> Path:
        return self.root / SOLUTIONS / self.slug

    @property
    def source(self) -> Path:
        return self.folder / f"{self.slug}.py"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def wrong(self) -> Path:
        return self.folder / "wrong"

    @property
    def right(self) -> Path:
        """Other right answers: they must earn everything, whatever a check demands beyond the reference."""
        return self.folder / "right"

    @property
    def solution_notebook(self) -> Path:
        """The converted source: a build product that stock nbgrader reads."""
        return self.folder / f"{self.slug}.ipynb"

    @property
    def released(self) -> Path:
        return self.root / LABS / self.slug / f"{self.slug}.ipynb"

    @property
    def work(self) -> Path:
        """The student's own copy."""
        return self.root / WORK / self.slug / f"{self.slug}.ipynb"

    def master(self) -> NotebookNode:
        """The source as a notebook, solutions and hidden tests included; a fresh copy at every call."""
        return read_source(self.source)

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.master().metadata.get("threeloops", {}))

    @property
    def title(self) -> str:
        return str(self.settings.get("title", self.name.replace("_", " ")))

    @property
    def withholds(self) -> list[str]:
        """Modules that hold answers: they do not exist on the student's side of a graded run."""
        return list(self.settings.get("withholds", []))

    @property
    def limits(self) -> Limits:
        return Limits(**self.settings.get("limits", {}))


def all_labs(root: Path | None = None) -> list[Lab]:
    """Every lab that has a source, in the order of the course."""
    root = root or course_root()
    folders = sorted(p for p in (root / SOLUTIONS).glob("*") if _FOLDER.fullmatch(p.name))
    return [Lab(p.name, root) for p in folders if (p / f"{p.name}.py").is_file()]


def find_lab(name: str, root: Path | None = None) -> Lab:
    """`1`, `01`, `roofline` and `01_roofline` all name the same lab.

    Raises:
        LabError: no such lab; the message lists those there are.
    """
    labs = all_labs(root)
    wanted = name.strip().removesuffix("/").removesuffix(".ipynb")
    for lab in labs:
        if wanted in (lab.slug, lab.name) or (wanted.isdecimal() and int(wanted) == lab.number):
            return lab
    known = ", ".join(lab.slug for lab in labs) or f"none: {root or course_root()} has no solutions/"
    raise LabError(f"there is no lab {name!r}; the labs here are {known}. Use the number, the name, or both.")


def read_source(path: Path) -> NotebookNode:
    """Convert one py:percent source to a notebook with stable cell ids and no traces of the conversion."""
    return copy.deepcopy(_convert(path, path.stat().st_mtime_ns))


@cache
def _convert(path: Path, _modified: int) -> NotebookNode:
    import jupytext  # slow, and not needed to name a lab

    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata.pop("jupytext", None)
    for cell in notebook.cells:
        cell.metadata.pop("lines_to_next_cell", None)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return _with_stable_ids(notebook)


def _with_stable_ids(notebook: NotebookNode) -> NotebookNode:
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        name = grade_id(cell)
        if name is None:
            digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
            seen[digest] += 1
            name = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        cell.id = name
    return notebook


def grade_id(cell: NotebookNode) -> str | None:
    """nbgrader's name of the cell, or None for prose and demonstrations."""
    metadata = cell.get("metadata")
    meta = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    name = meta.get("grade_id") if isinstance(meta, dict) else None
    return name if isinstance(name, str) else None
