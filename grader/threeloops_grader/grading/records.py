"""The records of grading: one per submission, the report of a class, and exports of it."""

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Self

import msgspec

from threeloops_grader.machine.terminal import encodable
from threeloops_grader.pages.spreadsheet import to_csv as _csv

__all__ = ["ClassReport", "Record", "Test", "WITHOUT_ISOLATION", "gradescope", "short_notes", "to_csv", "to_json"]

_MAX_NOTES = 40
_MAX_NOTE = 600
_Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]

WITHOUT_ISOLATION = "graded without isolation (sandbox: none): the submission could have changed its own points"
"""Every export of a class graded with `--sandbox none` says this."""


@dataclass
class Test:
    """The verdict on one test cell. `in_hidden`: it failed in the cell's hidden part, after all that a student sees."""

    name: str
    score: _Amount
    max_score: _Amount
    output: str
    in_hidden: bool = False


@dataclass
class Record:
    """The outcome of one submission. A `failed` one could not be graded at all; `notes` say why."""

    student: str
    score: _Amount
    max_score: _Amount
    status: Literal["graded", "failed"]
    seconds: _Amount
    verified_on: str
    reflection: Literal["complete", "incomplete"]
    notes: list[str] = field(default_factory=list)
    tests: list[Test] = field(default_factory=list)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the record that `asdict` wrote. Raises ValueError for anything else."""
        record = msgspec.convert(data, cls)
        if asdict(record) != data:
            raise ValueError("the record has other fields, too")
        scored: list[Record | Test] = [record, *record.tests]
        if any(part.score > part.max_score for part in scored):
            raise ValueError("a score of the record is above its maximum")
        return record


@dataclass
class ClassReport:
    """A graded class, as `threeloops grade --json` writes it."""

    lab: str
    sandbox: str
    records: list[Record]

    def to_dict(self) -> dict[str, Any]:
        warning = {"warning": WITHOUT_ISOLATION} if self.sandbox == "none" else {}
        return {**warning, **asdict(self)}


def to_json(value: Any) -> str:
    return encodable(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)) + "\n"


def short_notes(notes: list[str]) -> list[str]:
    """Return each note once, with their length and number limited to what a person reads."""
    short = [n if len(n) <= _MAX_NOTE else f"{n[:_MAX_NOTE]} [...]" for n in dict.fromkeys(notes)]
    omitted = len(short) - _MAX_NOTES
    return short if omitted <= 0 else [*short[:_MAX_NOTES], f"and {omitted} more notes"]


def gradescope(record: Record, sandbox: str = "") -> dict[str, Any]:
    """Return the record as Gradescope's results.json. `sandbox` is the class report's."""
    tests = [
        {"name": t.name, "score": t.score, "max_score": t.max_score, "output": t.output}
        | {"status": "passed" if t.score == t.max_score else "failed"}
        for t in record.tests
    ]
    notes = [*record.notes, f"reflection: {record.reflection}", f"verified on: {record.verified_on}"]
    if sandbox == "none":
        notes.insert(0, WITHOUT_ISOLATION)
    return {"score": record.score, "execution_time": record.seconds, "output": "\n".join(notes), "tests": tests}


def to_csv(report: ClassReport) -> str:
    """Return CSV with one row per student."""
    head = ["student", "lab", "score", "max_score", "status", "reflection", "verified_on", "sandbox"]
    rows = [{**asdict(record), "lab": report.lab, "sandbox": report.sandbox} for record in report.records]
    return encodable(_csv([head, *([row[name] for name in head] for row in rows)]))
