"""Groups of students who share a submission, from an instructor's table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.classroom.register.extensions import EVERY_LAB
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.register.tables import read_columns, require_no_faults
from threeloops_grader.submissions.folder import spelling

__all__ = ["Groups", "Member", "places", "read_groups", "save_groups", "saved_groups"]


@dataclass(frozen=True)
class Member:
    """A student's place in a group, for a lab or for every lab."""

    group: str
    student: str
    lab: str = EVERY_LAB


class Groups:
    """The groups of a class. A group for one lab counts before one for every lab."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._group_of = {(member.lab, spelling(member.student)): member.group for member in members}
        self._students: dict[tuple[str, str], list[str]] = {}
        for member in members:
            self._students.setdefault((member.lab, member.group), []).append(member.student)

    def __bool__(self) -> bool:
        return bool(self._students)

    def of(self, student: str, lab: str) -> tuple[str, list[str]]:
        """Return the name of a student's group for a lab and its students, or "" and the student alone.

        A student who has another group for this lab is not in their group for every lab.
        """
        if group := self._group_of.get((lab, spelling(student))):
            return group, self._students[lab, group]
        if group := self._group_of.get((EVERY_LAB, spelling(student))):
            mates = self._students[EVERY_LAB, group]
            return group, [mate for mate in mates if (lab, spelling(mate)) not in self._group_of]
        return "", [student]


def read_groups(path: Path, students: Sequence[Student]) -> list[Member]:
    """Read a table `group,student`, with an optional column `lab`; a row without a lab is for every lab.

    Raises LabError that lists all faults: somebody is not on the roster, or in two groups for the same lab.
    """
    ids = {spelling(student.id).casefold(): student.id for student in students}
    members: dict[tuple[str, str], Member] = {}
    faults = []
    for line, row in read_columns(path, ("group", "student"), ("lab",)):
        try:
            if not row["group"] or not row["group"].isprintable():
                raise LabError(f"the group's name {row['group']!r} is empty or cannot be printed")
            student = ids.get(spelling(row["student"]).casefold())
            if student is None:
                raise LabError(f"{row['student']!r} is not on the roster; expected an id of `threeloops class init`")
            lab = EVERY_LAB if row.get("lab", "") in ("", EVERY_LAB) else find_lab(row["lab"]).slug
            member = Member(row["group"], student, lab)
            before = members.setdefault((lab, member.student), member)
            if before != member:
                raise LabError(f"{member.student} is in group {before.group!r} for the same lab; keep one")
        except LabError as error:
            faults.append(f"line {line}: {error}")
    require_no_faults(faults, path)
    return list(members.values())


def places(members: Sequence[Member]) -> dict[str, str]:
    """Return a text per student that says in which groups they are."""
    of: dict[str, list[str]] = {}
    for member in sorted(members, key=lambda member: member.lab):
        lab = "every lab" if member.lab == EVERY_LAB else member.lab
        of.setdefault(member.student, []).append(f"in group {member.group} for {lab}")
    return {student: "; ".join(texts) for student, texts in of.items()}


def save_groups(path: Path, members: Sequence[Member]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps([asdict(member) for member in members], indent=1) + "\n")


def saved_groups(path: Path) -> list[Member]:
    """Return the groups of the class, or none without the file. Raises LabError if it was damaged."""
    try:
        return [Member(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error!r}); run `threeloops class groups TABLE.csv` again") from None
