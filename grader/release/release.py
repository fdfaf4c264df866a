"""From `solutions/` to `labs/`: nbgrader's own generate_assignment, followed by what the course promises of a release.

A released notebook depends on its source alone: stable cell ids, no outputs, no trace of a kernel, and of the header
only the lab's name and a hash of the release. Stock `nbgrader generate_assignment` writes the same bytes, because the
last step (`ForStudents`) is one of its preprocessors.
"""

from __future__ import annotations

import logging
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
from traitlets.config import Config

from grader.authoring.data_files import data_files
from grader.authoring.labs import LABS, SOLUTIONS, Lab, LabError, all_labs
from grader.authoring.leaks import leaks
from grader.authoring.lint import require_sound
from grader.release.files import differences
from grader.release.preprocessors import content_hash

GENERATED = "threeloops_generated"
"""Key in a solution notebook's metadata: the hash of what was generated, to notice that someone edited it since."""

IGNORE = ["*.py", "*.pyc", "wrong", "right", "__pycache__", ".*", "*.tmp", "feedback"]
"""What nbgrader must never copy to students: sources, wrong answers and other right ones hold the answers."""

PREPROCESSORS = [
    "nbgrader.preprocessors.IncludeHeaderFooter",
    "nbgrader.preprocessors.LockCells",
    "nbgrader.preprocessors.ClearSolutions",
    "nbgrader.preprocessors.ClearOutput",
    "grader.release.preprocessors.CheckCells",
    "nbgrader.preprocessors.ComputeChecksums",
    "nbgrader.preprocessors.SaveCells",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.ClearMarkScheme",
    "nbgrader.preprocessors.ComputeChecksums",
    "grader.release.preprocessors.CheckCells",
    "grader.release.preprocessors.ForStudents",
]
"""nbgrader's own list for generate_assignment, with our check for its own and the student's copy at its end."""


def release(labs: Sequence[Lab], *, root: Path | None = None) -> list[Path]:
    """Generate `solutions/NN/NN.ipynb` and `labs/NN/` of each lab; return the released notebooks.

    `root` is the course whose `labs/` is written (default: the labs' own). No gradebook is read or made. All labs are
    built beside the old ones first and then moved into place, so a fault in one leaves every lab as it was.

    Raises:
        LabError: a source breaks a rule, a solution notebook was edited by hand, or a release would hold an answer.
    """
    for lab in labs:
        require_sound(lab)
        refuse_edited(lab)
    for lab in labs:
        write_solution(lab)
    if not labs:
        return []
    root = root or labs[0].root
    (root / LABS).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".release.", suffix=".tmp") as scratch:
        built = _build(labs, Path(scratch))
        for lab in labs:
            if differences(built / lab.slug, root / LABS / lab.slug):
                _exchange(built / lab.slug, root / LABS / lab.slug, Path(scratch) / f"{lab.slug}.old")
    return [root / LABS / lab.slug / f"{lab.slug}.ipynb" for lab in labs]


def stale(labs: Sequence[Lab]) -> list[str]:
    """What `labs/` holds that `solutions/` does not generate, and the reverse; empty when it is current."""
    with tempfile.TemporaryDirectory() as scratch:
        built = _build(labs, Path(scratch))
        found = [
            f"{LABS}/{lab.slug}/{name} {what}"
            for lab in labs
            for name, what in differences(built / lab.slug, lab.root / LABS / lab.slug).items()
        ]
    for root in {lab.root for lab in labs}:
        known = {lab.slug for lab in all_labs(root)}
        released = sorted(p.name for p in (root / LABS).iterdir()) if (root / LABS).is_dir() else []
        found += [
            f"{LABS}/{name} has no source in {SOLUTIONS}/" for name in released if name not in known | {".gitkeep"}
        ]
    return found


def write_solution(lab: Lab) -> Path:
    """Write `solutions/NN/NN.ipynb`, the build product that stock nbgrader and formgrader read.

    An unedited notebook of the same source is left alone, with the outputs that it may hold.
    """
    master = lab.master()
    master.metadata[GENERATED] = content_hash(master)
    present = _read_solution(lab)
    if present is None or any(present.metadata.get(k) != v for k, v in master.metadata.items() if k != "kernelspec"):
        replace_text(lab.solution_notebook, nbformat.writes(master) + "\n")
    return lab.solution_notebook


def refuse_edited(lab: Lab) -> None:
    """Raises LabError where the solution notebook holds an edit that its source does not."""
    present = _read_solution(lab)
    if present is None:
        return
    found = content_hash(present)
    if found not in (present.metadata.get(GENERATED), content_hash(lab.master())):
        notebook, source = (p.relative_to(lab.root) for p in (lab.solution_notebook, lab.source))
        raise LabError(
            f"{notebook} was edited after it was generated; releasing would lose that. Bring the edit back with\n"
            f"    jupytext --to py:percent --output {source} {notebook}\n"
            f"and release again; or delete {notebook} to drop the edit"
        )


def _read_solution(lab: Lab) -> NotebookNode | None:
    try:
        return nbformat.read(lab.solution_notebook, as_version=4)
    except FileNotFoundError:
        return None
    except Exception as error:  # nbformat raises several unrelated types for a damaged file
        where = lab.solution_notebook.relative_to(lab.root)
        raise LabError(f"{where} cannot be read as a notebook ({error}); delete it and release again") from None


def _build(labs: Iterable[Lab], scratch: Path) -> Path:
    """Generate the release of `labs` in `scratch`; returns the folder that holds one folder a lab."""
    for lab in labs:
        folder = scratch / SOLUTIONS / lab.slug
        folder.mkdir(parents=True)
        nbformat.write(lab.master(), folder / f"{lab.slug}.ipynb")
        for name, path in data_files(lab).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
        _generate(lab.slug, scratch)
        if found := leaks(lab, scratch / LABS / lab.slug):
            raise LabError(f"lab {lab.slug} would be released with answers:\n" + "\n".join(found))
    return scratch / LABS


def _generate(slug: str, root: Path) -> None:
    config = Config()
    config.CourseDirectory.update(root=str(root.resolve()), source_directory=SOLUTIONS, release_directory=LABS)
    config.CourseDirectory.update(assignment_id=slug, ignore=IGNORE)
    config.GenerateAssignment.update(no_database=True, preprocessors=PREPROCESSORS)
    config.SaveCells.enabled = False
    said: list[str] = []
    log = logging.Logger("release")
    log.addHandler(_Collect(said))
    try:
        GenerateAssignment(coursedir=CourseDirectory(config=config), config=config, log=log).start()
    except NbGraderException as error:
        raise LabError(f"lab {slug}: nbgrader could not generate it:\n" + ("\n".join(said) or str(error))) from error


class _Collect(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _exchange(new: Path, place: Path, old: Path) -> None:
    """Move a folder into place; what stood there goes to `old`, and returns should the move fail."""
    if place.exists():
        place.rename(old)
    try:
        new.rename(place)
    except BaseException:
        if old.exists():
            old.rename(place)
        raise
