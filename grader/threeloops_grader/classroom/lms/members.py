"""Read the roster from the platform: Names and Role Provisioning Services 2.0 (NRPS)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.lms.platform import NRPS_SCOPE, Connector, explained
from threeloops_grader.classroom.register.roster import Roster, Student, current, fault_of, student_of
from threeloops_grader.submissions.folder import spelling

__all__ = ["fetch_roster"]

_VOCABULARY = "http://purl.imsglobal.org/vocab/lis/v2/"
_LEARNERS = ("Learner", "Student")
_TEST_USER = "http://purl.imsglobal.org/vocab/lti/system/person#TestUser"


def fetch_roster(connector: Connector, roster: Sequence[Student] = ()) -> Roster:
    """Return the learners of the course; those who are not active there are marked as dropped.

    A member who is on the roster already (`roster`) keeps the id there, and with it folder and grades: the same user of
    the LMS, or else the same number in the student administration, or else the same email address. Otherwise the id is
    that number, or else the email address, or else the user's id at the LMS.

    Raises:
        LabError: the platform gives no members, none of them is a learner, or one id is two people's.
    """
    url = connector.platform.memberships_url
    with explained(f"reading the members at {url}", "--memberships-url", [NRPS_SCOPE]):
        members = [_plain(member) for member in connector.members().get_members()]
    students: dict[str, Student] = {}
    left_out: list[str] = []
    notes: list[str] = []
    owners = _owners(roster)
    for member in members:
        if why := _no_learner(member):
            notes.append(f"{_who(member)} {why}")
            continue
        student, note = _student(member, owners)
        notes += [f"{_who(member)} {note}"] if note else []
        if why := fault_of(student) or ("" if student.lti_id else "the platform sent no user_id"):
            left_out.append(f"{_who(member)}: {why}")
            continue
        twin = students.setdefault(spelling(student.id).casefold(), student)
        if twin.lti_id != student.lti_id:
            raise LabError(
                f"{twin.name or twin.lti_id} and {_who(member)} have the same id {student.id!r} at the LMS; have one "
                "of them corrected there. Nothing was changed"
            )
    if not current(list(students.values())):
        raise LabError(f"{url} names {len(members)} members and no active learner; check --memberships-url")
    return Roster(list(students.values()), left_out, notes)


def _plain(member: Any) -> dict[str, Any]:
    """Return a member's texts without None, and the roles as a list. Raises TypeError if it is not a member."""
    texts = {name: str(value).strip() for name, value in member.items() if isinstance(value, (str, int))}
    return {**texts, "roles": [str(role) for role in member.get("roles") or []]}


def _who(member: dict[str, Any]) -> str:
    return member.get("name") or member.get("email") or f"user {member.get('user_id', 'without an id')}"


def _no_learner(member: dict[str, Any]) -> str:
    """Return why a member is not entered, or "" for a learner."""
    roles = sorted({role for text in member["roles"] if (role := _course_role(text))})
    if _TEST_USER in member["roles"]:
        return "is the platform's test user and is left out"
    if not set(roles) & set(_LEARNERS):
        return f"has the role {' and '.join(roles) or 'of nobody in this course'} and is left out"
    return ""


def _course_role(role: str) -> str:
    """Return the role in the course, such as Learner; "" for one in the institution or the system.

    >>> _course_role("http://purl.imsglobal.org/vocab/lis/v2/membership/Learner#NonCreditLearner")
    'Learner'
    """
    kind, _, name = role.removeprefix(_VOCABULARY).rpartition("#")
    if kind.startswith("membership/"):
        return kind.removeprefix("membership/")
    if kind == "membership" or (not kind and ":" not in name):  # Moodle writes the name alone
        return name
    return ""


_MATCHED = ("lti_id", "sis_id", "email")


def _owners(roster: Sequence[Student]) -> dict[tuple[str, str], Student]:
    """Return who owns each value that identifies one student only."""
    pairs = [((name, getattr(s, name).casefold()), s) for s in roster for name in _MATCHED if getattr(s, name)]
    times = Counter(pair for pair, _ in pairs)
    return {pair: student for pair, student in pairs if times[pair] == 1}


def _student(member: dict[str, Any], owners: dict[tuple[str, str], Student]) -> tuple[Student, str]:
    given = {
        "first_name": member.get("given_name", ""),
        "last_name": member.get("family_name", ""),
        "name": member.get("name", ""),
        "email": member.get("email", ""),
        "sis_id": member.get("lis_person_sourcedid", ""),
        "lti_id": member.get("user_id", ""),
        "dropped": "" if (status := member.get("status") or "Active") == "Active" else f"{status.lower()} at the LMS",
    }
    student, _ = student_of(given)
    note = ""
    if not student.id or fault_of(student):
        student = replace(student, id=student.lti_id)
        note = f"has neither number nor email address that can be an id, so the id is {student.id}"
    owner = next(
        (owners[key] for name in _MATCHED if (key := (name, getattr(student, name).casefold())) in owners), None
    )
    if owner is not None:
        own = {field.name: getattr(student, field.name) for field in fields(Student) if field.name != "id"}
        newer = {name: value for name, value in own.items() if value or name == "dropped"}
        student = replace(owner, **newer)
        note = ""
    if len(set(map(_course_role, member["roles"])) - {"", *_LEARNERS}) > 0:
        note = f"has another role beside Learner and is entered{'; ' + note if note else ''}"
    return student, note
