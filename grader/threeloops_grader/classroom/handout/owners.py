"""Find the student who owns a downloaded file, from the names that platforms give to files and folders."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["METADATA", "Folder", "Owners", "file_of", "gradescope_folder", "gradescope_folders", "owners"]

METADATA = "submission_metadata.yml"
"""The file in which Gradescope's export names the students of each folder."""

_MOODLE = re.compile(r"(?P<name>[^/]+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)")
_CANVAS = re.compile(r"(?P<name>[^/_]+)_(?:LATE_)?(?P<id>\d+)_(?:\d+_|text\b)")
_BLACKBOARD = re.compile(r"_(?P<id>[^_/]+)_attempt_\d{4}-\d\d-\d\d")
_BRIGHTSPACE = re.compile(r"\d+-\d+ - (?P<name>[^/]+?) - [^/]+/")
_GRADESCOPE = re.compile(r"(?:^|/)(?P<folder>submission_\d+)/")
_FIELD = re.compile(r" *(?:- +)?:(?:sid|email): *(?P<quote>['\"]?)(?P<value>[^\s'\"].*?)(?P=quote)\s*")
"""A number or email address in YAML. The address may have an apostrophe, which is doubled between apostrophes."""


@dataclass(frozen=True)
class Folder:
    """A folder of Gradescope's export: the ids and email addresses of each submitter, and the time as it is written.
    Several submitters are a group."""

    submitters: tuple[tuple[str, ...], ...]
    created_at: str = ""


@dataclass(frozen=True)
class Owners:
    """The ids of the students whose file this is; several are a group. `unknown` says who else is in that group."""

    students: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def owners(name: str, students: Sequence[Student], folders: Mapping[str, Folder]) -> Owners:
    """Return the students whose file this is: one, or a group of Gradescope's.

    `folders` are those of a Gradescope export (`gradescope_folders`). Raises BadSubmission unless each student is known
    and exactly one fits. In a group, one who is known is enough.
    """
    if (folder := folders.get(gradescope_folder(name))) and len(folder.submitters) > 1:
        fits_of = [_called(names, students) for names in folder.submitters]
        known_ones = tuple(dict.fromkeys(fits[0].id for fits in fits_of if len(fits) == 1))
        unknown = tuple(
            " or ".join(names) or "somebody without a number and email address"
            for names, fits in zip(folder.submitters, fits_of, strict=True)
            if len(fits) != 1
        )
        if known_ones:
            return Owners(known_ones, unknown)
    fits = _fitting(name, students, folders)
    if len(fits) != 1:
        who = f"{', '.join(s.id for s in fits)} all fit" if fits else "nobody on the roster fits"
        step = "put it into a folder named by the student's id"
        step += "" if fits else ", or add the student to the roster"
        raise BadSubmission(f"its student is unknown ({who}); {step}")
    return Owners((fits[0].id,))


def file_of(name: str) -> str:
    """Return the last part of a path."""
    return name.rpartition("/")[2]


def gradescope_folder(name: str) -> str:
    """Return the folder of Gradescope's export that a file lies in, or ""."""
    match = _GRADESCOPE.search(name)
    return match["folder"] if match else ""


def _fitting(name: str, students: Sequence[Student], folders: Mapping[str, Folder]) -> list[Student]:
    if folder := folders.get(gradescope_folder(name)):
        return _called([own for names in folder.submitters for own in names], students)
    if moodle := _MOODLE.search(name):
        fits = [s for s in students if s.moodle_id and s.moodle_id == moodle["id"]]
        return fits or _named(moodle["name"], students)
    if canvas := _CANVAS.match(file_of(name)):
        fits = [s for s in students if s.canvas_id and s.canvas_id == canvas["id"]]
        fits = fits or [s for s in students if _letters(s.last_name + s.first_name) == _letters(canvas["name"])]
        return fits or [s for s in students if _folded(s.id) == _folded(canvas["name"])]
    if gradescope_folder(name):
        return []
    if brightspace := _BRIGHTSPACE.search(name):
        return _named(brightspace["name"], students)
    if blackboard := _BLACKBOARD.search(name):
        return _called([blackboard["id"]], students)
    heads = {name.partition("/")[0], *re.split(r"\.|_\d\d_", name.rpartition("/")[2])[:1]}
    parts = heads | set(name.split("/"))
    if fits := _called([*parts, *(part.removesuffix(".zip") for part in parts)], students):
        return fits
    clones = [part for part in parts if "-" in part]  # GitHub Classroom names clones assignment-student
    return [s for s in students if any(_folded(part).endswith(f"-{_folded(s.id)}") for part in clones)]


def _named(name: str, students: Sequence[Student]) -> list[Student]:
    wanted = _letters(name)
    return [s for s in students if wanted in (_letters(s.name), _letters(s.last_name + s.first_name))]


def _called(names: Sequence[str], students: Sequence[Student]) -> list[Student]:
    """Return the students with one of these ids, numbers or email addresses."""
    wanted = {_folded(name) for name in names}
    return [s for s in students if wanted & {_folded(own) for own in (s.id, s.sis_id, s.email) if own}]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _letters(text: str) -> str:
    """Return the letters of a name. Canvas leaves out spaces and signs, and no platform keeps the composition of
    accents."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def gradescope_folders(metadata: str) -> dict[str, Folder]:
    """Return the folders of a Gradescope export, from its `METADATA`. Its history of earlier submissions is left
    out."""
    parts = re.split(r"^:?(submission_\d+):", metadata, flags=re.MULTILINE)
    return {name: _folder(text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _folder(text: str) -> Folder:
    people: list[list[str]] = []
    created_at = ""
    outer: int | None = None
    is_inside = False
    for line in (line for line in text.split("\n") if line.strip()):
        indent = len(line) - len(line.lstrip())
        outer = indent if outer is None else outer
        is_item = line.lstrip().startswith("-")
        if indent == outer and not is_item:
            is_inside = line.strip() == ":submitters:"
            if line.strip().startswith(":created_at:"):
                created_at = line.partition(":created_at:")[2].strip()
            elif value := _value(line):
                people.append([value])
        elif is_inside:
            if is_item:
                people.append([])
            if people and (value := _value(line)):
                people[-1].append(value)
    return Folder(tuple(tuple(names) for names in people), created_at)


def _value(line: str) -> str:
    """Return the number or email address on a line, or ""."""
    match = _FIELD.fullmatch(line)
    if match is None:
        return ""
    return match["value"].replace("''", "'") if match["quote"] == "'" else match["value"]
