"""Release `solutions/` to `labs/` with nbgrader's own generate_assignment, and check its input and its output.

A released notebook depends on its source alone. It has stable cell ids, no outputs and no trace of a kernel. Its header
contains only the lab's name, its minutes and a hash of the release. Stock `nbgrader generate_assignment` writes the
same bytes, because the last step (`ForStudents`) is one of its preprocessors.
"""

import io
import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from threeloops.files import replace_text
from threeloops.lab.course import glossary, loops, outline
from traitlets.config import Config

from threeloops_grader.authoring.data_files import data_files
from threeloops_grader.authoring.labs import LABS, OPENING, SOLUTIONS, Lab, LabError, all_labs
from threeloops_grader.authoring.lint import require_sound
from threeloops_grader.authoring.markdown.answer_file import ANSWERS
from threeloops_grader.release import opening
from threeloops_grader.release.files import differences
from threeloops_grader.release.leaks import leaks
from threeloops_grader.release.preprocessors import ForStudents, content_hash

__all__ = ["IGNORE", "PREPROCESSORS", "not_on_the_map", "release", "stale", "write_dives"]

_GENERATED = "threeloops_generated"
"""The key in a solution notebook's metadata of the hash of the generated notebook, which reveals a later edit."""

_README = "README.md"
_TABLE = re.compile(
    r"(?<=<!-- the labs, written by `threeloops release` -->\n\n).*?(?=\n<!-- end of the labs -->)", re.DOTALL
)
"""The place of the table of labs in the README, if there is one."""

IGNORE = [
    "*.py", "*.pyc", "opening.png", "equivalent_mutants.json", ANSWERS, "__pycache__", ".*", "*.tmp",
    "feedback",
]  # fmt: skip
"""Files that nbgrader must never copy to students. Sources, wrong answers and other right ones hold the answers, and so
do the mutants of an answer. The opening picture is attached to the notebook."""

PREPROCESSORS = [
    "nbgrader.preprocessors.IncludeHeaderFooter",
    "nbgrader.preprocessors.LockCells",
    "nbgrader.preprocessors.ClearSolutions",
    "nbgrader.preprocessors.ClearOutput",
    "threeloops_grader.release.preprocessors.CheckCells",
    "nbgrader.preprocessors.ComputeChecksums",
    "nbgrader.preprocessors.SaveCells",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.ClearMarkScheme",
    "nbgrader.preprocessors.ComputeChecksums",
    "threeloops_grader.release.preprocessors.CheckCells",
    "threeloops_grader.release.preprocessors.ForStudents",
]
"""nbgrader's own list for generate_assignment without InstantiateTests (no lab uses AUTOTEST markers), with CheckCells
in place of nbgrader's own check and ForStudents at the end."""


def release(labs: Sequence[Lab]) -> list[Path]:
    """Generate `solutions/NN/NN.ipynb` and `labs/NN/` of each lab, and the pages about all labs.

    Returns the released notebooks. No gradebook is read or made. All labs are first built beside the old ones and then
    moved into place, so a fault in one leaves every lab as it was.

    Raises:
        LabError: a source breaks a rule, a solution notebook was edited by hand, or a release would hold an answer.
    """
    solutions = {}
    for lab in labs:
        require_sound(lab)
        if not opening.is_current(lab):
            opening.draw(lab)
        solutions[lab] = _new_solution(lab)
    for lab, notebook in solutions.items():
        if notebook is not None:
            replace_text(lab.solution_notebook, nbformat.writes(notebook) + "\n")
    if not labs:
        return []
    root = labs[0].root
    (root / LABS).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".release.", suffix=".tmp") as scratch:
        built = _build(labs, Path(scratch))
        for lab in labs:
            if differences(built / lab.slug, lab.released.parent):
                _exchange(built / lab.slug, lab.released.parent, Path(scratch) / f"{lab.slug}.old")
    for path, text in _written(root).items():
        replace_text(path, text)
    return [lab.released for lab in labs]


def stale(labs: Sequence[Lab]) -> list[str]:
    """Return the differences between `labs/` and the labs that `solutions/` generates, one sentence per file, or none
    if it is current."""
    with tempfile.TemporaryDirectory() as scratch:
        built = _build(labs, Path(scratch))
        differing = [
            f"{LABS}/{lab.slug}/{name} {what}"
            for lab in labs
            for name, what in differences(built / lab.slug, lab.root / LABS / lab.slug).items()
        ]
    differing += [
        f"{lab.opening.relative_to(lab.root)} is not what the cell tagged {OPENING!r} draws"
        for lab in labs
        if not opening.is_current(lab)
    ]
    for root in {lab.root for lab in labs}:
        written = _written(root)
        expected = {lab.slug for lab in all_labs(root)} | {".gitkeep"} | {path.name for path in written}
        names = sorted(path.name for path in (root / LABS).glob("*"))
        differing += [
            f"{path.relative_to(root)} differs from what the library says of the course"
            for path, text in written.items()
            if not path.is_file() or path.read_text(encoding="utf-8") != text
        ]
        differing += [f"{LABS}/{name} has no source in {SOLUTIONS}/" for name in names if name not in expected]
    return differing


def not_on_the_map(labs: Sequence[Lab]) -> list[str]:
    """Return the labs that README, `labs/course.md` and the map of lab 00 do not show."""
    on_map = {lab.name for lab in loops.labs()}
    return [lab.slug for lab in labs if lab.slug not in on_map]


def _written(root: Path) -> dict[Path, str]:
    """Return the texts about all labs of a course: glossary, the page of the course, and the README's table."""
    minutes = {lab.slug: lab.minutes for lab in all_labs(root)}
    try:
        pages = {root / LABS / "glossary.md": glossary.page(), root / LABS / "course.md": outline.page(minutes)}
    except ValueError as error:
        raise LabError(str(error)) from None
    readme = root / _README
    if readme.is_file():
        table = outline.readme_table(minutes)
        pages[readme] = _TABLE.sub(lambda _: table, readme.read_text(encoding="utf-8"))
    return pages


def _new_solution(lab: Lab) -> NotebookNode | None:
    """Return the solution notebook to write, or None if the one that is there, with any outputs, is of the same source.

    Raises:
        LabError: the one that is there holds an edit that its source does not, or cannot be read.
    """
    master = lab.master()
    master.metadata[_GENERATED] = content_hash(master)
    notebook, source = (p.relative_to(lab.root) for p in (lab.solution_notebook, lab.source))
    try:
        present = nbformat.read(lab.solution_notebook, as_version=4)
    except FileNotFoundError:
        return master
    except Exception as error:  # nbformat raises several unrelated types for a damaged file
        raise LabError(f"{notebook} cannot be read as a notebook ({error}); delete it and release again") from None
    if content_hash(present) not in (present.metadata.get(_GENERATED), master.metadata[_GENERATED]):
        raise LabError(
            f"{notebook} was edited after it was generated; releasing would lose that. Bring the edit back with\n"
            f"    jupytext --to py:percent --output {source} {notebook}\n"
            f"and release again; or delete {notebook} to drop the edit"
        )
    current = all(present.metadata.get(k) == v for k, v in master.metadata.items() if k != "kernelspec")
    return None if current else master


def _build(labs: Iterable[Lab], scratch: Path) -> Path:
    """Generate the release of `labs` in `scratch`; returns the folder that holds one folder per lab."""
    for lab in labs:
        folder = scratch / SOLUTIONS / lab.slug
        folder.mkdir(parents=True)
        nbformat.write(lab.master(), folder / f"{lab.slug}.ipynb")
        for name, path in data_files(lab).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
        _generate(lab.slug, scratch)
        write_dives(lab, scratch / LABS / lab.slug)
        if leaked := leaks(lab, scratch / LABS / lab.slug):
            raise LabError(f"lab {lab.slug} would be released with answers:\n" + "\n".join(leaked))
    return scratch / LABS


def write_dives(lab: Lab, folder: Path) -> None:
    """Write the lab's notebook of deep dives, if it has one. It is not nbgrader's: it holds nothing to hand in."""
    for notebook in lab.notebooks[1:]:
        dives, _ = ForStudents().preprocess(notebook.master(), {"nbgrader": {"assignment": lab.slug}})
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(dives, folder / f"{notebook.stem}.ipynb")


def _generate(slug: str, root: Path) -> None:
    config = Config()
    config.CourseDirectory.update(root=str(root.resolve()), source_directory=SOLUTIONS, release_directory=LABS)
    config.CourseDirectory.update(assignment_id=slug, ignore=IGNORE)
    config.GenerateAssignment.update(no_database=True, preprocessors=PREPROCESSORS)
    config.SaveCells.enabled = False
    errors = io.StringIO()
    log = logging.Logger("release", logging.ERROR)
    log.addHandler(logging.StreamHandler(errors))
    try:
        GenerateAssignment(coursedir=CourseDirectory(config=config), config=config, log=log).start()
    except NbGraderException as error:
        why = errors.getvalue().strip() or error
        raise LabError(f"lab {slug}: nbgrader could not generate it:\n{why}") from error


def _exchange(new: Path, place: Path, old: Path) -> None:
    """Move a folder into place. The old folder goes to `old`, and comes back if the move fails."""
    if place.exists():
        place.rename(old)
    try:
        new.rename(place)
    except BaseException:
        if old.exists():
            old.rename(place)
        raise
