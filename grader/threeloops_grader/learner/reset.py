"""Put one exercise of a learner's copy back to the released cell, and keep the answer."""

from pathlib import Path

from nbformat import NotebookNode
from threeloops.files import replace_text
from threeloops.lab.course import journal

from threeloops_grader.authoring.labs import Lab, LabError, all_labs, find_lab, grade_id
from threeloops_grader.authoring.manifest import Manifest, manifest
from threeloops_grader.learner.progress import key
from threeloops_grader.release.own_notebook import read_notebook, read_own, write_own

__all__ = ["reset"]


def reset(exercise: str, lab: str | None = None) -> tuple[Lab, Path | None]:
    """Reset an answer. Returns the lab, and the file with the old answer, or None if the cell already was as released.

    If the cell was split or copied, its first part becomes the released cell, and the others go into the file too.

    The answer is written before the notebook is touched, so an interrupted run loses nothing.

    Raises:
        LabError: no started lab has this exercise, several do, or the cell is no longer in the notebook.
    """
    chosen = _lab_of(exercise, lab)
    not_released = f"lab {chosen.slug} was released without {exercise}; run `threeloops release`"
    released = _cell(read_notebook(chosen.released, not_released), exercise)
    notebook = read_own(chosen.work, f"{chosen.work} is missing")
    if released is None:
        raise LabError(not_released)
    cells = [cell for cell in notebook.cells if grade_id(cell) == exercise]
    if not cells:
        back = f"`threeloops update {chosen.slug}` gives it back"
        raise LabError(f"{chosen.work} has no cell {exercise} any more; {back}")
    mine, *others = cells
    texts = [cell.source for cell in cells if cell.source.rstrip() != released.source.rstrip()]
    if not texts and not others:
        return chosen, None
    backup = _keep(chosen, exercise, "\n".join(texts or [mine.source]))
    mine.source = released.source
    notebook.cells = [cell for cell in notebook.cells if not any(cell is other for other in others)]
    tests = manifest(chosen, visible=True).exercise(exercise).tests
    for cell in [mine, *(_cell(notebook, test) for test in tests)]:
        if cell is not None:
            cell.outputs = []
            cell.execution_count = None  # a green card would speak of the answer that is gone
    write_own(chosen.work, notebook)
    journal.note_checked(chosen.copies, chosen.slug, {key(test): False for test in tests})
    return chosen, backup


def _lab_of(exercise: str, lab: str | None) -> Lab:
    labs = [find_lab(lab)] if lab is not None else all_labs()
    if lab is None:  # most labs do not have the word anywhere, and their cells need not be read
        labs = [candidate for candidate in labs if exercise in candidate.source.read_text(encoding="utf-8")]
    having = [candidate for candidate in labs if exercise in _exercises(manifest(candidate, visible=True))]
    if not having and lab is not None:
        own = ", ".join(_exercises(manifest(labs[0], visible=True)))
        raise LabError(f"lab {labs[0].slug} has no exercise {exercise!r}; its exercises are {own}")
    if not having:
        raise LabError(f"no lab has an exercise {exercise!r}; `threeloops status` names the next one of each lab")
    begun = [candidate for candidate in having if candidate.work.is_file()]
    if not begun:
        raise LabError(
            f"{having[0].work} does not exist: you have not started lab {having[0].slug} here, so nothing can be reset"
        )
    if len(begun) > 1:
        names = ", ".join(candidate.slug for candidate in begun)
        raise LabError(f"several of your labs have an exercise {exercise!r} ({names}): say which one with --lab")
    return begun[0]


def _exercises(trusted: Manifest) -> tuple[str, ...]:
    return tuple(exercise.id for exercise in trusted.exercises)


def _cell(notebook: NotebookNode, exercise: str) -> NotebookNode | None:
    return next((cell for cell in notebook.cells if grade_id(cell) == exercise), None)


def _keep(lab: Lab, exercise: str, answer: str) -> Path:
    """Write the answer to the first name that is free, or holds the same."""
    number = 1
    while True:
        backup = lab.work.parent / f"{exercise}.before-reset{'' if number == 1 else f'-{number}'}.py"
        if not backup.exists():
            replace_text(backup, answer.rstrip() + "\n")
            return backup
        if backup.read_text(encoding="utf-8") == answer.rstrip() + "\n":
            return backup
        number += 1
