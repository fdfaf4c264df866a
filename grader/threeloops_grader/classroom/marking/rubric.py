"""The reflection's points in nbgrader's gradebook: one number, or a task cell per criterion of the lab's rubric.

A task cell is nbgrader's form of a text with points and a comment that a person gives. No released notebook has one:
they are entered in the gradebook, and appear below the reflection in the graded notebook.
"""

from collections.abc import Iterator
from contextlib import suppress

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import REFLECTION

__all__ = ["criterion_cells", "criterion_title", "require_reflection", "set_reflection", "task_points"]


def task_points(book: Gradebook, slug: str) -> dict[str, float]:
    """Return the points of the criteria that the gradebook has, by their cells' names."""
    try:
        return {cell.name: float(cell.max_score) for cell in book.find_notebook(slug, slug).task_cells}
    except MissingEntry:
        return {}


def _present(book: Gradebook, slug: str) -> dict[str, float]:
    cells = task_points(book, slug)
    with suppress(MissingEntry):
        cells[REFLECTION] = float(book.find_grade_cell(REFLECTION, slug, slug).max_score)
    return cells


def _wanted(lab: Lab, points: float) -> dict[str, float]:
    if lab.rubric:
        return {criterion.cell: criterion.points for criterion in lab.rubric}
    return {REFLECTION: points} if points else {}


def require_reflection(book: Gradebook, lab: Lab, points: float) -> None:
    """Check that the reflection's points may become those of the lab's rubric, or `points` if it has none.

    Raises LabError if they differ from the gradebook's and there are graded submissions, whose points would then mean
    something else.
    """
    present = _present(book, lab.slug)
    wanted = _wanted(lab, points)
    graded = book.db.query(SubmittedAssignment).filter(SubmittedAssignment.assignment.has(name=lab.slug)).limit(1)
    if present == wanted or not graded.count():
        return
    if lab.rubric or present.keys() - {REFLECTION}:
        step = f"Give the rubric in {lab.source} the criteria and points that it had; their texts may change"
    else:
        step = f"Run `threeloops class init` with --reflection {present.get(REFLECTION, 0.0):g}"
    raise LabError(
        f"the reflection of {lab.slug} has {_sum(present)} and there are submissions; {_sum(wanted)} is too late. "
        f"{step}"
    )


def _sum(cells: dict[str, float]) -> str:
    parts = [f"{name.partition('_')[2]} {points:g}" for name, points in cells.items() if name != REFLECTION]
    return f"{sum(cells.values()):g} points" + (f" ({', '.join(parts)})" if parts else "")


def set_reflection(book: Gradebook, lab: Lab, points: float) -> None:
    """Enter the points of the reflection for formgrader: a cell per criterion of the lab's rubric, or `points` if it
    has none. Raises LabError as `require_reflection` does."""
    require_reflection(book, lab, points)
    wanted = _wanted(lab, points)
    for name in _present(book, lab.slug).keys() - wanted.keys():
        book.db.delete(book.find_graded_cell(name, lab.slug, lab.slug))
    book.db.commit()
    for name, most in wanted.items():
        enter = book.update_or_create_grade_cell if name == REFLECTION else book.update_or_create_task_cell
        enter(name, lab.slug, lab.slug, max_score=most, cell_type="markdown")


def criterion_title(name: str) -> str:
    """Return the name of a criterion's cell as pages show it: `reflection (evidence)`."""
    return f"{REFLECTION} ({name.removeprefix(f'{REFLECTION}_').replace('_', ' ')})"


def criterion_cells(lab: Lab, points: dict[str, float]) -> Iterator[NotebookNode]:
    """Yield the cells in which formgrader takes the points of each criterion, and a comment."""
    texts = {criterion.cell: criterion.text for criterion in lab.rubric}
    ordered = [name for name in texts if name in points] + sorted(points.keys() - texts.keys())
    for name in ordered:
        role = {"schema_version": 3, "grade_id": name, "points": points[name], "cell_type": "markdown"}
        role |= {"grade": False, "solution": False, "locked": True, "task": True}
        text = f"**{criterion_title(name)}**, {points[name]:g} points\n\n{texts.get(name, '')}"
        yield new_markdown_cell(text.strip(), id=name.replace("_", "-"), metadata={"nbgrader": role})
