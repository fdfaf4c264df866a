"""Match downloaded notebooks with students: from Canvas, from Moodle, or with one folder or file per student."""

import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from threeloops.files import replace_text, replacing

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.classroom.handout.archive import members
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.submissions.folder import TIMESTAMP, below
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["Download", "read_download", "store"]

_MOST_BYTES = 33 << 20
"""Just more than grading reads, so that grading refuses a larger file with its own message."""

_MOODLE = re.compile(r"(?P<name>[^/]+?)_\d+_assignsubmission_file")
_CANVAS = re.compile(r"(?P<name>[^/_]+)_(?:LATE_)?(?P<id>\d+)_\d+_")


@dataclass
class Download:
    """Notebooks by student id, and one sentence for each file that could not be given to anybody."""

    notebooks: dict[str, bytes] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read_download(path: Path, lab: Lab, students: Sequence[Student]) -> Download:
    """Read a folder or a zip file. Nothing is written, and a fault in one student's file does not affect the others.

    Raises LabError: there is no such file, or it cannot be read as a whole.
    """
    download = Download()
    try:
        files = list(members(path, _MOST_BYTES)) if path.is_file() else list(_files(path))
    except BadSubmission as error:
        raise LabError(f"{path}: {error}") from None
    if not files:
        raise LabError(f"{path} is neither a zip file nor a folder with submissions; nothing was collected")
    for name, content in files:
        if not name.endswith((".zip", ".ipynb")) or "__MACOSX/" in name:
            continue
        try:
            student = _owner(name, students)
            notebook = _notebook(name, content, lab)
        except BadSubmission as error:
            download.faults.append(f"{name}: {error}")
            continue
        if student in download.notebooks and download.notebooks[student] != notebook:
            download.faults.append(f"{name}: a second, different notebook of {student}; the first was kept")
            continue
        download.notebooks[student] = notebook
    return download


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path, status in sorted(below(folder)):
        if path.is_file() and not path.is_symlink() and status.st_size <= _MOST_BYTES:
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _owner(name: str, students: Sequence[Student]) -> str:
    """Find the student who owns a file. Raises BadSubmission unless exactly one student fits."""
    if moodle := _MOODLE.search(name):
        wanted = _letters(moodle["name"])
        fits = [s for s in students if _letters(s.name) == wanted or _letters(s.last_name + s.first_name) == wanted]
    elif canvas := _CANVAS.match(name.rpartition("/")[2]):
        fits = [s for s in students if s.canvas_id and s.canvas_id == canvas["id"]]
        fits = fits or [s for s in students if _letters(s.last_name + s.first_name) == _letters(canvas["name"])]
        fits = fits or [s for s in students if _folded(s.id) == _folded(canvas["name"])]
    else:
        heads = {name.partition("/")[0], *re.split(r"\.|_\d\d_", name.rpartition("/")[2])[:1]}
        parts = {_folded(part) for part in (heads | set(name.split("/")))}
        fits = [s for s in students if _folded(s.id) in parts or any(_folded(f"{s.id}.{e}") in parts for e in ("zip",))]
    if len(fits) != 1:
        who = f"{', '.join(s.id for s in fits)} all fit" if fits else "nobody of the roster fits"
        raise BadSubmission(f"whose it is cannot be told ({who}); put it into a folder named by the student's id")
    return fits[0].id


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _letters(text: str) -> str:
    """Return the letters of a name. Canvas leaves out spaces and signs, and no platform keeps the composition of
    accents."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def _notebook(name: str, content: bytes, lab: Lab) -> bytes:
    if name.endswith(".ipynb"):
        return content
    inside = list(members(io.BytesIO(content), _MOST_BYTES))
    notebooks = [text for inner, text in inside if inner.rpartition("/")[2] == f"{lab.slug}.ipynb"]
    if len(notebooks) != 1:
        raise BadSubmission(f"the zip file holds {len(notebooks)} files {lab.slug}.ipynb, expected one")
    return notebooks[0]


def store(download: Download, lab: Lab, folder: Path, handed_in: datetime | None) -> int:
    """Write each notebook to `folder/<student>/<lab>/`, whole or not at all; returns how many were new or changed.

    `handed_in` is noted as the time of all of them. Without it, a notebook that is there already keeps its time.
    """
    changed = 0
    for student, content in download.notebooks.items():
        path = folder / student / lab.slug / f"{lab.slug}.ipynb"
        stamp = path.parent / TIMESTAMP
        is_new = not path.is_file() or path.read_bytes() != content
        time = f"{handed_in.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if handed_in else ""
        if is_new:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as stream:
                stream.write(content)
            stamp.unlink(missing_ok=True)  # of the submission that this one replaces
        if time and (not stamp.is_file() or stamp.read_text() != time):
            replace_text(stamp, time)
            is_new = True
        changed += is_new
    return changed
