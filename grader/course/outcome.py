"""What a run of the course finds out, as data."""

from dataclasses import dataclass, field
from typing import Any

from grader.authoring.labs import Lab
from grader.course.execute import Executed
from grader.grading.records import Record
from grader.sandbox.pool import Sandbox

__all__ = ["CourseReport", "LabOutcome"]


@dataclass
class LabOutcome:
    """Everything that a run of the course found out about one lab."""

    lab: Lab
    executed: list[Executed]
    """The core notebook, and the deep dives where there are any, as in `Lab.notebooks`."""
    verified_on: str
    grades: dict[str, Record] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    before: bool = False
    """An earlier run found it, and nothing that it depends on has changed since."""

    @property
    def seconds(self) -> float:
        return sum(e.seconds for e in self.executed) + sum(r.seconds for r in self.grades.values())

    def to_dict(self) -> dict[str, Any]:
        scores = {k: {"score": r.score, "max_score": r.max_score} for k, r in self.grades.items()}
        summary = {"lab": self.lab.slug, "seconds": round(self.seconds, 2), "verified_on": self.verified_on}
        return {**summary, **scores, "faults": self.faults, "before": self.before}


@dataclass
class CourseReport:
    device: str
    sandbox: Sandbox
    labs: list[LabOutcome]
    seconds: float

    @property
    def faults(self) -> list[str]:
        return [f"{o.lab.slug}: {fault}" for o in self.labs for fault in o.faults]

    def to_dict(self) -> dict[str, Any]:
        labs = [o.to_dict() for o in self.labs]
        return {"device": self.device, "sandbox": self.sandbox, "seconds": round(self.seconds, 2), "labs": labs}
