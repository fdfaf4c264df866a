"""Put the records of all shares together. Nothing is executed: a submission without a valid record is named."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.grading.grade import Options, failed_record
from threeloops_grader.grading.records import ClassReport, Record
from threeloops_grader.grading.scoring import Report, prepare
from threeloops_grader.submissions import reading as submissions
from threeloops_grader.submissions.reading import BadSubmission, Submission
from threeloops_grader.worklist.grade_class import decides
from threeloops_grader.worklist.store import Key, RecordStore

__all__ = ["Merged", "merge", "ungraded"]

_NAMED = 10
_FEW = 500


@dataclass
class Merged:
    """A class as its records tell it. `report` holds the students whose points are settled."""

    report: ClassReport
    missing: list[str] = field(default_factory=list)
    """Students without a record."""
    stale: list[str] = field(default_factory=list)
    """Students whose submission was graded by other code, another version of the lab, or with other options."""
    contradicted: list[str] = field(default_factory=list)
    """Students with two records of the same grading that give different results."""
    double: list[str] = field(default_factory=list)
    """Students with two records that agree; one of them counts."""

    @property
    def is_complete(self) -> bool:
        return not (self.missing or self.stale or self.contradicted)

    def faults(self) -> list[str]:
        """Return one line for each kind of gap, with names and the next step."""
        kinds = [
            (self.missing, "without a record", "grade their shares, then merge again"),
            (
                self.stale,
                "graded by other code, with another version of the lab, or with other options",
                "give all machines the same checkout and packages, and grade their shares again",
            ),
            (self.contradicted, "with two records that give different results", "remove one of them, or grade again"),
        ]
        return [f"{len(names)} submissions {what} ({_some(names)}): {step}" for names, what, step in kinds if names]


def merge(folder: Path, lab: Lab, options: Options, records: Sequence[Path]) -> Merged:
    """Collect the records of every submission below `folder` from the folders `records`, in the order of students.

    A submission that cannot be graded becomes a failed record here, as in `grade_class`, because that needs no
    execution. Raises LabError and FileNotFoundError as `submissions.find` does.
    """
    stores = [RecordStore(path, lab.slug) for path in records]
    at = decides(lab, options)
    merged = Merged(ClassReport(lab.slug, options.sandbox, []))
    lost: dict[str, Key] = {}
    for submission in submissions.find(folder, lab):
        try:
            content = submissions.content(submission, folder)
            key = Key.of(submission.student, content, at)
            accepted = [record for store in stores if (record := store.load(key)) is not None]
            if not accepted:
                prepare(submissions.parse(content), lab, Report(), visible=options.visible)
        except BadSubmission as error:
            merged.report.records.append(failed_record(submission.student, lab, options, str(error)))
            continue
        if not accepted:
            lost[submission.student] = key
        elif any(_results(other) != _results(accepted[0]) for other in accepted[1:]):
            merged.contradicted.append(submission.student)
        else:
            merged.report.records.append(accepted[0])
            merged.double += [submission.student] if len(accepted) > 1 else []
    _sort_out(merged, lost, stores)
    return merged


def ungraded(
    folder: Path, lab: Lab, options: Options, store: RecordStore, *, was_graded: bool = False
) -> list[Submission]:
    """Return the submissions without a record, and leave out those that cannot be graded at all.

    To find these among thousands takes minutes, and the workers find them too. So a large class is searched for them
    only if it `was_graded` already, because they never get a record.
    """
    at = decides(lab, options)
    left: list[tuple[Submission, bytes]] = []
    for submission in submissions.find(folder, lab):
        with suppress(BadSubmission):
            content = submissions.content(submission, folder)
            key = Key.of(submission.student, content, at)
            has_cells = not options.keep_executed or store.load_executed(key) is not None
            if not has_cells or store.load(key) is None:
                left.append((submission, content))
    if len(left) > _FEW and not was_graded:
        return [submission for submission, _ in left]
    return [submission for submission, content in left if _is_gradable(content, lab, options)]


def _is_gradable(content: bytes, lab: Lab, options: Options) -> bool:
    try:
        prepare(submissions.parse(content), lab, Report(), visible=options.visible)
    except BadSubmission:
        return False
    return True


def _sort_out(merged: Merged, lost: dict[str, Key], stores: Sequence[RecordStore]) -> None:
    """Tell submissions that other code has graded from those that nobody has."""
    graded_by: dict[tuple[str, str], set[str]] = defaultdict(set)
    for store in stores if lost else ():
        for student, submission, fingerprint in store.others():
            graded_by[student, submission].add(fingerprint)
    for student, key in lost.items():
        (merged.stale if graded_by[student, key.submission] else merged.missing).append(student)


def _results(record: Record) -> dict[str, object]:
    """Return everything in a record but the time that it took."""
    return {**asdict(record), "seconds": None}


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
