"""Find each student's notebook in a platform's download (Canvas, Moodle, Gradescope and others) or in a folder."""

import hashlib
import io
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from threeloops.files import replace_text, replacing

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.classroom.exchange.attempts import attempts_of, first, keep
from threeloops_grader.classroom.exchange.swap import put_in_place
from threeloops_grader.classroom.handout.archive import members
from threeloops_grader.classroom.handout.download_times import is_marked_late, time_of
from threeloops_grader.classroom.handout.owners import METADATA, Folder, gradescope_folder, gradescope_folders, owners
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.submissions.folder import TIMESTAMP, below
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["Download", "read_download", "store", "time_noted"]

_MOST_BYTES = 33 << 20
"""Just more than grading reads, so that grading refuses a larger file with its own message."""

_ENDINGS = re.compile(r"\.ipynb(?:\.(?:txt|json))?$", re.IGNORECASE)
_COMPANIONS = re.compile(rf"(?:^|/)(?:index\.html|{re.escape(METADATA)}|[^/]*_attempt_[-\d]+\.txt)$", re.IGNORECASE)
"""Files that a platform adds to a download. No student handed them in."""


@dataclass
class Download:
    """Notebooks by student id, and one sentence for each file or student from which nothing could be collected.

    `times` say when they were handed in, without a zone if the platform names none. `late` are the students whose file
    Canvas marked as late. `notes` have a sentence for each group. `unusable` says why nothing could be collected from a
    student who handed in.
    """

    notebooks: dict[str, bytes] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    times: dict[str, datetime] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)


class _Candidate(NamedTuple):
    """A notebook of a student, with the name of its file, of the file that it came in, and its time."""

    name: str
    source: str
    content: bytes
    time: datetime | None = None
    is_late: bool = False


def read_download(path: Path, lab: Lab, students: Sequence[Student]) -> Download:
    """Read a folder or a zip file. Nothing is written, and a fault in one student's file does not affect the others.

    The notebook with the lab's name counts, whatever else a student handed in. If there is none, a notebook with
    another name counts, unless there are two different ones.

    Raises LabError: there is no such file, or it cannot be read as a whole.
    """
    download = Download()
    _require_download(path)
    try:
        files = list(members(path, _MOST_BYTES)) if path.is_file() else list(_files(path))
    except BadSubmission as error:
        raise LabError(f"{path}: {error}") from None
    if not files:
        raise LabError(f"{path} holds no file; expected submissions, so nothing was collected")
    folders: dict[str, Folder] = {}
    for name, content in files:
        if name.rpartition("/")[2] == METADATA:
            folders |= gradescope_folders(content.decode("utf-8", "replace"))
    candidates: dict[str, list[_Candidate]] = defaultdict(list)
    others: list[tuple[str | None, str]] = []
    for name, content in files:
        if _is_hidden(name) or _COMPANIONS.search(name):
            continue
        try:
            owned = owners(name, students, folders)
        except BadSubmission as error:
            others.append((None, f"{name}: {error}"))
            continue
        try:
            inside = _notebooks(name, content)
        except BadSubmission as error:
            others += [(student, f"{name}: {error}") for student in owned.students]
            continue
        folder = gradescope_folder(name)
        others += [
            (None, f"{folder}: {who} of this group matches no student on the roster, or several")
            for who in owned.unknown
        ]
        timed = [c._replace(time=time_of(name, folders), is_late=is_marked_late(name)) for c in inside]
        for student in owned.students:
            candidates[student] += timed
        if len(owned.students) > 1:
            download.notes.append(f"{folder}: handed in by a group, and collected for {', '.join(owned.students)}")
    for student, notebooks in candidates.items():
        try:
            _take(download, student, _chosen(notebooks, lab))
        except BadSubmission as error:
            others.append((student, f"{student}: {error}"))
    download.notes = list(dict.fromkeys(download.notes))
    others = [(student, fault) for student, fault in others if student not in download.notebooks]
    download.faults = list(dict.fromkeys(fault for _, fault in others))
    for owner, fault in others:
        if owner is not None:
            download.unusable.setdefault(owner, fault.removeprefix(f"{owner}: "))
    return download


def _require_download(path: Path) -> None:
    """Check that a path names a folder or a file that may be a zip file. Raises LabError with what it may be for."""
    if path.is_dir():
        return
    if not path.is_file():
        raise LabError(f"there is no file or folder {path}; nothing was collected")
    with path.open("rb") as stream:
        if stream.read(2) == b"PK" or path.suffix.lower() == ".zip":
            return
    raise LabError(
        f"{path} is not a download; expected a platform's zip file with submissions, or a folder. A roster is for "
        "`threeloops class init`, and Moodle's grading worksheet for --worksheet. Nothing was collected"
    )


def _take(download: Download, student: str, chosen: _Candidate) -> None:
    download.notebooks[student] = chosen.content
    if chosen.time is not None:
        download.times[student] = chosen.time
    if chosen.is_late:
        download.late.add(student)


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path, status in sorted(below(folder)):
        if path.is_file() and not path.is_symlink() and status.st_size <= _MOST_BYTES:
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _is_hidden(name: str) -> bool:
    """Return whether the system or an editor made the file: Jupyter's checkpoints, and what macOS adds."""
    return any(part.startswith((".", "__MACOSX")) and part != ".." for part in name.split("/"))


def _notebooks(name: str, content: bytes) -> list[_Candidate]:
    """Return the notebooks of a file. Raises BadSubmission if it is neither a notebook nor a zip file with one."""
    if _ENDINGS.search(name):
        if not name.lower().endswith(".ipynb") and not _is_notebook(content):
            raise BadSubmission("it is no notebook; nothing of it was collected")
        return [_Candidate(name, name, content)]
    if not name.lower().endswith(".zip"):
        raise BadSubmission("it is neither a notebook nor a zip file; nothing of it was collected")
    inside = []
    for inner, text in members(io.BytesIO(content), _MOST_BYTES):
        path = inner.replace("\\", "/")  # PowerShell writes backslashes
        if _ENDINGS.search(path) and not _is_hidden(path):
            inside.append(_Candidate(path, f"{path} in {name}", text))
    if not inside:
        raise BadSubmission("the zip file holds no notebook")
    return inside


def _is_notebook(content: bytes) -> bool:
    try:
        return "cells" in json.loads(content)
    except (ValueError, TypeError):
        return False


def _chosen(notebooks: list[_Candidate], lab: Lab) -> _Candidate:
    """Return the notebook that counts. Raises BadSubmission if none does, or if several different ones could."""
    ranked: Mapping[int, list[_Candidate]] = defaultdict(list)
    for notebook in notebooks:
        ranked[_rank(notebook.name, lab)].append(notebook)
    best = ranked[min(ranked)]
    if len({notebook.content for notebook in best}) > 1:
        names = ", ".join(sorted(notebook.source for notebook in best))
        raise BadSubmission(f"several different notebooks could be meant, and none was stored: {names}")
    if min(ranked) == _OTHER_LAB:
        raise BadSubmission(f"no notebook of {lab.slug}: {best[0].source} is another lab's, or has the dives")
    return best[0]


_OTHER_LAB = 4


def _rank(name: str, lab: Lab) -> int:
    """Return how likely a notebook is the one that was meant: 0 is best.

    0 is the lab's name, with whatever a platform puts in front. 1 is the copy in `labs/` from which a student started,
    2 a numbered copy, as browsers and Canvas make it, 3 any other name, and 4 another lab or the dives.
    """
    folder, _, last = name.rpartition("/")
    stem = _ENDINGS.sub("", last)
    front = r"(?:.*_)?"
    if re.fullmatch(front + re.escape(lab.slug), stem):
        return 1 if f"/{folder}".endswith(f"/labs/{lab.slug}") else 0
    if re.fullmatch(front + re.escape(lab.slug) + r"(?: ?\(\d+\)|-\d+)", stem):
        return 2
    is_other = re.search(rf"(?:^|_)(?!{lab.slug[:2]}_)\d\d_[a-z]+(?:_[a-z]+)+(?:$|[ (-])", stem)
    return _OTHER_LAB if stem.endswith("_dives") or is_other else 3


def store(
    download: Download,
    lab: Lab,
    folder: Path,
    handed_in: datetime | None,
    rule: str = "last",
    times: Mapping[str, datetime] | None = None,
) -> int:
    """Write each notebook to `folder/<student>/<lab>/`, whole or not at all; returns how many were new or changed.

    A notebook that is replaced stays among the student's attempts. A notebook that is there already keeps its time if
    there is no other.

    Args:
        handed_in: the time of all of them.
        times: the time of each student's, in UTC, if there is no time of all.
        rule: which attempts count. Beyond the first N, one is added to the download's faults.
    """
    changed = 0
    for student, content in download.notebooks.items():
        path = folder / student / lab.slug / f"{lab.slug}.ipynb"
        stamp = path.parent / TIMESTAMP
        attempts = attempts_of(folder.parent, lab.slug, student)
        digest = hashlib.sha256(content).hexdigest()
        when = handed_in or (times or {}).get(student)
        utc = when.astimezone(UTC).replace(tzinfo=None, microsecond=0) if when else None
        if rule != "last" and path.is_file() and any(a.digest == digest and utc in (None, a.time) for a in attempts):
            continue  # also if a better attempt is in its place
        is_new = not path.is_file() or path.read_bytes() != content
        time = f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if when else ""
        most = first(rule)
        if is_new and most is not None and len(attempts) >= most and all(a.digest != digest for a in attempts):
            download.faults.append(f"{student}: {len(attempts)} attempts are there and the first {most} count")
            continue
        if is_new:
            keep(folder.parent, lab.slug, student, path.parent)
            _replace(path, content, time)
        elif time and (not stamp.is_file() or stamp.read_text() != time):
            replace_text(stamp, time)
            is_new = True
        changed += is_new
    return changed


def _replace(path: Path, content: bytes, time: str) -> None:
    """Put a notebook in the place of an earlier one, together with its time, or without any.

    A command that is killed here leaves the earlier notebook or the new one, and never one with the time of the other.
    The next command stores the new one.
    """
    current = path.parent
    half = current.with_name(f".{current.name}.new")
    shutil.rmtree(half, ignore_errors=True)
    half.parent.mkdir(parents=True, exist_ok=True)
    if current.is_dir():
        shutil.copytree(current, half, symlinks=True)
    half.mkdir(exist_ok=True)
    (half / TIMESTAMP).unlink(missing_ok=True)
    with replacing(half / path.name) as stream:
        stream.write(content)
    if time:
        replace_text(half / TIMESTAMP, time)
    put_in_place(half, current)


def time_noted(folder: Path, student: str, lab: Lab) -> bool:
    """Return whether the student's submission in `folder` has a time."""
    stamp = folder / student / lab.slug / TIMESTAMP
    return stamp.is_file() and bool(stamp.read_text(encoding="ascii", errors="replace").strip())
