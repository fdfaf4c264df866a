"""A lab's source as its rules see it: a header, and cells that each have one role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode

from grader.authoring.labs import Lab, grade_id


@dataclass(frozen=True)
class Cell:
    """One cell of a master notebook, by the role that its metadata gives it."""

    name: str
    source: str
    code: bool
    tags: tuple[str, ...]
    hidden: bool
    """Its code is folded away: the reader sees what it shows."""
    meta: dict[str, Any]

    @property
    def role(self) -> str:
        if self.meta.get("grade"):
            return "test"
        if self.meta.get("solution"):
            return "solution" if self.code else "reflection"
        if "setup" in self.tags:
            return "setup"
        if not self.code:
            return "prose"
        return "demo" if "demo" in self.tags else "unnamed"


@dataclass(frozen=True)
class Source:
    """A lab's cells and header as lint reads them."""

    lab: Lab
    header: dict[str, Any]
    cells: tuple[Cell, ...]

    def of(self, role: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.role == role]


def read(lab: Lab) -> Source:
    """Read `solutions/NN_slug/NN_slug.py`."""
    master = lab.master()
    cells = tuple(_cell(position, cell) for position, cell in enumerate(master.cells, start=1))
    return Source(lab, dict(master.metadata.get("threeloops", {})), cells)


def _cell(position: int, cell: NotebookNode) -> Cell:
    first_line = cell.source.strip().partition("\n")[0]
    return Cell(
        name=grade_id(cell) or f"{position} ({first_line[:40]!r})",
        source=cell.source,
        code=cell.cell_type == "code",
        tags=tuple(cell.metadata.get("tags", ())),
        hidden=bool(cell.metadata.get("jupyter", {}).get("source_hidden")),
        meta=dict(cell.metadata.get("nbgrader", {})),
    )
