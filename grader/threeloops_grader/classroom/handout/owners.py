"""Find the student who owns a downloaded file, from the names that platforms give to files and folders."""

import re
import unicodedata
from collections.abc import Mapping, Sequence

from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["METADATA", "owner", "submitters"]

METADATA = "submission_metadata.yml"
"""The file in which Gradescope's export names the student of each folder."""

_MOODLE = re.compile(r"(?P<name>[^/]+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)")
_CANVAS = re.compile(r"(?P<name>[^/_]+)_(?:LATE_)?(?P<id>\d+)_(?:\d+_|text\b)")
_BLACKBOARD = re.compile(r"_(?P<id>[^_/]+)_attempt_\d{4}-\d\d-\d\d")
_BRIGHTSPACE = re.compile(r"\d+-\d+ - (?P<name>[^/]+?) - [^/]+/")
_GRADESCOPE = re.compile(r"(?:^|/)(?P<folder>submission_\d+)/")
_SUBMITTER = re.compile(r"^ *(?:- )?:(?P<key>sid|email): *['\"]?(?P<value>[^'\"\n]+)", re.MULTILINE)


def owner(name: str, students: Sequence[Student], people: Mapping[str, Sequence[str]]) -> str:
    """Return the id of the student whose file this is.

    `people` has ids and email addresses by folder (`submitters`). Raises BadSubmission unless exactly one student fits.
    """
    fits = _fitting(name, students, people)
    if len(fits) != 1:
        who = f"{', '.join(s.id for s in fits)} all fit" if fits else "nobody of the roster fits"
        raise BadSubmission(f"its student is unknown ({who}); put it into a folder named by the student's id")
    return fits[0].id


def _fitting(name: str, students: Sequence[Student], people: Mapping[str, Sequence[str]]) -> list[Student]:
    if moodle := _MOODLE.search(name):
        fits = [s for s in students if s.moodle_id and s.moodle_id == moodle["id"]]
        return fits or _named(moodle["name"], students)
    if canvas := _CANVAS.match(name.rpartition("/")[2]):
        fits = [s for s in students if s.canvas_id and s.canvas_id == canvas["id"]]
        fits = fits or [s for s in students if _letters(s.last_name + s.first_name) == _letters(canvas["name"])]
        return fits or [s for s in students if _folded(s.id) == _folded(canvas["name"])]
    if gradescope := _GRADESCOPE.search(name):
        return _called(people.get(gradescope["folder"], ()), students)
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


def submitters(metadata: str) -> dict[str, list[str]]:
    """Return the ids and email addresses of each folder of a Gradescope export, from its `METADATA`."""
    people: dict[str, list[str]] = {}
    parts = re.split(r"^:?(submission_\d+):", metadata, flags=re.MULTILINE)
    for folder, text in zip(parts[1::2], parts[2::2], strict=True):
        people[folder] = [match["value"].strip() for match in _SUBMITTER.finditer(text)]
    return people
