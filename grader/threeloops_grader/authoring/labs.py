"""The labs: where they are, their names, and their master notebooks.

The only hand-written form of a lab is `solutions/NN_slug/NN_slug.py`, in jupytext's py:percent format with nbgrader's
own cell metadata. `Lab.master()` converts it to a notebook.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threeloops_grader.authoring.markdown.rubric import Criterion, criteria, rubric_faults

__all__ = [
    "BASE", "GOES_ON", "KERNELSPEC", "LABS", "Lab", "LabError", "LabLimits", "OPENING", "SOLUTIONS", "all_labs",
    "course_root", "find_lab", "grade_id", "nested", "text_id", "work_folder",
]  # fmt: skip

if TYPE_CHECKING:  # a machine that only measures may have no nbformat, and must still be able to name a lab
    from nbformat import NotebookNode

SOLUTIONS = "solutions"
LABS = "labs"
_WORK = "work"
BASE = ".base"
"""The folder in `work/` with the releases that the student's copies were made from."""
_IN_WHEEL = Path(__file__).resolve().parents[1] / LABS
"""The folder of released labs in the wheel (setup.py). It does not exist in a checkout or a bundle."""
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
OPENING = "opening"
"""The tag of the cell that draws the picture in the title."""
GOES_ON = "raises-exception"
"""Jupyter's own tag, which release gives to answers. The exception of such a cell is shown, and the cells after it
still run."""
_PICTURE = f"{OPENING}.png"
_HEADER = re.compile(r".*?^# ---\s*?$.*?^# ---\s*?$\n?", re.DOTALL | re.MULTILINE)
_FOLDER = re.compile(r"(\d\d)_([a-z0-9_]+)")


class LabError(Exception):
    """The course, a lab or a class cannot be used as it is. The message says why and what to do."""


def course_root() -> Path:
    """Return the repository or bundle: `$THREELOOPS_ROOT`, else the one that the working directory lies in, else the
    one that this package lies in. Absolute: grading changes directories.

    A package that was installed from a wheel lies in neither. In that case it is the folder that contains the learner's
    `work/`.
    """
    return _course_around() or _own_course() or work_folder().parent


def work_folder(starting: bool = False) -> Path:
    """Return the folder of the learner's copies, the same for every command.

    In a course it is `work/` at the course's top. Elsewhere it is the nearest `work/` with started labs, at or above
    the working directory. If there is none, it is `work/` of the course that contains this package, if labs were
    started there. Otherwise, and for a lab that is being started, it is `work/` of the working directory.
    """
    if course := _course_around():
        return course / _WORK
    here = Path.cwd()
    own = None if starting else _own_course()
    places = [here, *here.parents, *([own] if own else [])]
    return next((folder for folder in places if os.path.isdir(folder / _WORK / BASE)), here) / _WORK


def _own_course() -> Path | None:
    """Return the repository or bundle that this package lies in, or None if it was installed from a wheel."""
    return None if _IN_WHEEL.is_dir() else Path(__file__).resolve().parents[3]


def _course_around() -> Path | None:
    """Return the course that `$THREELOOPS_ROOT` names or the working directory lies in.

    If courses lie in each other, the package's own comes first and then the outermost: a submission that looks like a
    course must not become the one that grades it.
    """
    if named := os.environ.get("THREELOOPS_ROOT"):
        return Path(named).absolute()
    around = [Path.cwd(), *Path.cwd().parents]
    if (own := _own_course()) in around:
        return own
    courses = [folder for folder in around if _is_course(folder)]
    return courses[-1] if courses else None


def _is_course(folder: Path) -> bool:
    """Return whether this is a repository or bundle. Returns False also if this user may not look."""
    labs = os.path.isdir(folder / LABS) or os.path.isdir(folder / SOLUTIONS)
    return labs and os.path.isfile(folder / "nbgrader_config.py")


@dataclass(frozen=True)
class LabLimits:
    """The resources that one submission may use in a graded run. A lab's header overrides single fields."""

    cell_seconds: float = 30.0
    test_seconds: float = 60.0
    notebook_seconds: float = 300.0
    memory_mb: int = 3072
    processes: int = 64
    disk_mb: int = 256
    output_kb: int = 1024


@dataclass(frozen=True)
class Lab:
    """One notebook of the course. `slug` is its folder's name (`01_roofline`), `number` the leading two digits.

    Each lab has a core notebook, which is graded. It may also have a notebook of deep dives, which is not graded.
    `dives` says which of the two this is. Both have a source, a released form and a student's copy, in the same
    folders.
    """

    slug: str
    root: Path = field(default_factory=course_root)
    dives: bool = False
    work_elsewhere: Path | None = None
    """The folder of the learner's copies, if it is not `work/` of the course."""

    @property
    def number(self) -> int:
        return int(self.slug[:2])

    @property
    def name(self) -> str:
        return self.slug[3:]

    @property
    def stem(self) -> str:
        """The notebook's file name without its suffix."""
        return f"{self.slug}_dives" if self.dives else self.slug

    @property
    def notebooks(self) -> list[Lab]:
        """The core notebook, and the notebook of deep dives if there is one."""
        core = replace(self, dives=False)
        dives = replace(self, dives=True)
        return [core, dives] if dives.source.is_file() else [core]

    @property
    def folder(self) -> Path:
        """The lab's folder in `solutions/`, or in `labs/` if there are no solutions, as in a student bundle or a
        wheel."""
        return _place(self.root) / self.slug

    @property
    def has_answers(self) -> bool:
        """False in a student bundle and in a wheel."""
        return self.folder.parent.name == SOLUTIONS

    @property
    def source(self) -> Path:
        """The hand-written source; in a student bundle the released notebook, which holds neither answers nor hidden
        tests."""
        return self.folder / f"{self.stem}{'.py' if self.has_answers else '.ipynb'}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def opening(self) -> Path:
        """The picture that the core notebook's title shows; drawn by `threeloops release`."""
        return self.folder / _PICTURE

    @property
    def solution_notebook(self) -> Path:
        """The master as a file, for stock nbgrader; generated by `threeloops release`."""
        return self.folder / f"{self.stem}.ipynb"

    @property
    def released(self) -> Path:
        return _released_labs(self.root) / self.slug / f"{self.stem}.ipynb"

    @property
    def copies(self) -> Path:
        """The folder of the learner's copies of labs: see `work_folder`."""
        return self.work_elsewhere or self.root / _WORK

    @property
    def work(self) -> Path:
        """The student's own copy."""
        return self.copies / self.slug / f"{self.stem}.ipynb"

    def master(self) -> NotebookNode:
        """Return the source as a notebook, solutions and hidden tests included. Each call returns a fresh copy."""
        return copy.deepcopy(self._converted())

    def answered(self, texts: Mapping[str, str]) -> NotebookNode:
        """Return the master with the texts of some cells, by their ids, in place of the original texts."""
        notebook = self.master()
        for cell in notebook.cells:
            cell.source = texts.get(cell.id, cell.source)
        return notebook

    def _converted(self) -> NotebookNode:
        drawn = self.opening.stat().st_mtime_ns if self.opening.is_file() else 0
        return _convert(self.source, self.source.stat().st_mtime_ns, drawn)

    @property
    def settings(self) -> dict[str, Any]:
        """The lab's settings in the header. It is read without the cells, which takes a hundredth of the time."""
        if self.has_answers:
            metadata = _header(self.source, self.source.stat().st_mtime_ns)
        else:
            metadata = self._converted().metadata
        return copy.deepcopy(dict(metadata.get("threeloops") or {}))

    @property
    def title(self) -> str:
        return str(self.settings.get("title", self.name.replace("_", " ")))

    @property
    def minutes(self) -> int:
        """How long a reader is expected to take for the core notebook, by its header; 0 if that says nothing."""
        return int(self.settings.get("minutes", 0))

    @property
    def withholds(self) -> list[str]:
        """Modules that hold answers; the student's side of a graded run lacks them."""
        return list(self.settings.get("withholds", []))

    @property
    def rubric(self) -> tuple[Criterion, ...]:
        """The criteria by which an instructor awards points for the written reflection; none by default.

        Raises LabError if the header's rubric breaks a rule.
        """
        header = self.settings.get("rubric")
        if faults := list(rubric_faults(header)):
            raise LabError("\n".join(f"{self.slug}, {fault}" for fault in faults))
        return criteria(header)

    @property
    def limits(self) -> LabLimits:
        return LabLimits(**self.settings.get("limits", {}))


def all_labs(root: Path | None = None) -> list[Lab]:
    """Return every lab that has a source, in the order of the course: of `root`, or of the one that the learner works
    in."""
    elsewhere = None
    if root is None:
        root = course_root()
        copies = work_folder()
        elsewhere = None if copies == root / _WORK else copies
    folders = sorted(p for p in _place(root).glob("*") if _FOLDER.fullmatch(p.name))
    labs = (Lab(p.name, root, work_elsewhere=elsewhere) for p in folders)
    return [lab for lab in labs if lab.source.is_file()]


def find_lab(name: str, root: Path | None = None) -> Lab:
    """Find a lab. `1`, `01`, `roofline` and `01_roofline` all name the same one.

    Raises:
        LabError: there is no such lab. The message lists the existing ones.
    """
    labs = all_labs(root)
    wanted = name.strip().removesuffix("/").removesuffix(".ipynb")
    for lab in labs:
        if wanted in (lab.slug, lab.name) or (wanted.isdecimal() and int(wanted) == lab.number):
            return lab
    slugs = ", ".join(lab.slug for lab in labs) or f"none: {root or course_root()} has neither solutions/ nor labs/"
    raise LabError(f"there is no lab {name!r}; the labs here are {slugs}. Use the number, the name, or both.")


def _place(root: Path) -> Path:
    """Return `labs/` in a bundle or a wheel, which have labs alone. Anywhere else return `solutions/`, even if it does
    not exist yet."""
    labs = _released_labs(root)
    return labs if labs.is_dir() and not (root / SOLUTIONS).is_dir() else root / SOLUTIONS


def _released_labs(root: Path) -> Path:
    return _IN_WHEEL if _IN_WHEEL.is_dir() and not (root / LABS).is_dir() else root / LABS


@cache
def _convert(source: Path, _modified: int, drawn: int) -> NotebookNode:
    """Convert a py:percent source into a notebook without traces of the conversion.

    Cell ids depend on content alone, so that an inserted paragraph changes no other id. The cell that shows
    `attachment:opening.png` gets the picture if it is `drawn`. Raises LabError if the header cannot be read.
    """
    if source.suffix == ".ipynb":
        import nbformat

        return nbformat.read(source, as_version=4)
    notebook = _read(source, source.read_text(encoding="utf-8"))
    notebook.metadata.pop("jupytext", None)
    notebook.nbformat = 4
    notebook.nbformat_minor = 5
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        cell.metadata.pop("lines_to_next_cell", None)
        name = grade_id(cell) or text_id(cell)
        seen[name] += 1
        cell.id = name if seen[name] == 1 else f"{name}-{seen[name]}"
        if drawn and cell.cell_type == "markdown" and f"(attachment:{_PICTURE})" in cell.source:
            picture = base64.b64encode(source.with_name(_PICTURE).read_bytes()).decode()
            cell.attachments = {_PICTURE: {"image/png": picture}}
    return notebook


@cache
def _header(source: Path, _modified: int) -> NotebookNode:
    """Return the metadata in the header of a py:percent source. Raises LabError if it cannot be read."""
    text = source.read_text(encoding="utf-8")
    header = _HEADER.match(text)
    return _read(source, header[0] if header else text).metadata


def _read(source: Path, text: str) -> NotebookNode:
    """Return jupytext's notebook of a source's text. Raises LabError if the header cannot be read."""
    import jupytext  # slow, and not needed to name a lab

    try:
        notebook = jupytext.reads(text, fmt="py:percent")
    except Exception as error:
        if (mark := getattr(error, "problem_mark", None)) is None:  # every error of PyYAML's scanner and parser has it
            raise
        raise LabError(
            f"{source}, line {mark.line + 2}: the header, between the lines `# ---`, is not YAML: "  # line 1 is # ---
            f"{getattr(error, 'problem', error)}. Mend that line or the one before it; a text with a colon needs quotes"
        ) from None
    if not isinstance(notebook.metadata.get("threeloops") or {}, dict):
        raise LabError(
            f"{source}: the header's threeloops is {notebook.metadata['threeloops']!r}, expected lines below it with "
            "title, minutes and withholds"
        )
    return notebook


def text_id(cell: NotebookNode) -> str:
    """Return the id of a cell without a grade_id: a hash of its text."""
    return hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]


def grade_id(cell: NotebookNode) -> str | None:
    """Return nbgrader's name of the cell, or None for prose and demonstrations, and for anything but a text."""
    name = nested(cell, "metadata", "nbgrader", "grade_id")
    return name if isinstance(name, str) else None


def nested(data: Any, *keys: str) -> Any:
    """Return the value below nested keys, or None if something on the way is not a dict or lacks the key."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data
