"""Execute the submissions of a class side by side, before nbgrader reads them one after the other.

nbgrader stays the only writer of the gradebook. It takes an executed notebook only if the submission, the lab, the
grader and the packages are exactly those of the execution; otherwise it executes the submission itself.
"""

import os
from pathlib import Path

import psutil

from threeloops_grader.authoring.labs import Lab, LabError, course_root
from threeloops_grader.classroom.results.handins import needs_grading
from threeloops_grader.grading.grade import Options
from threeloops_grader.grading.records import Record
from threeloops_grader.machine.terminal import plain
from threeloops_grader.sandbox.pool import choose, close_pools
from threeloops_grader.submissions.reading import Submission
from threeloops_grader.worklist.grade_class import grade_class

__all__ = ["default_jobs", "execute_ahead"]


def default_jobs(lab: Lab) -> int:
    """Return how many submissions of a lab this machine has room for: one for every core, and for the memory that a
    submission may use."""
    by_memory = psutil.virtual_memory().available // (lab.limits.memory_mb << 20)
    return max(1, min(len(os.sched_getaffinity(0)), by_memory))


def execute_ahead(lab: Lab, jobs: int, sandbox: str, *, again: bool) -> Path | None:
    """Execute every submission that autograde would execute, `jobs` at a time. Returns the folder of the results.

    The results lie beside the submissions, as those of `threeloops grade --keep-notebooks` do, and these count as well.
    A run that is cut off continues where it stopped. With `again`, all submissions are executed. Returns None if nobody
    has handed in, or if there is nothing to gain, because one submission at a time is executed again.

    Raises MachineFault as `grade_class` does.
    """
    submitted = course_root() / "submitted"
    if not any(submitted.glob(f"*/{lab.slug}")) or (again and jobs == 1):
        return None
    records = submitted / ".threeloops"
    if jobs == 1:
        return records
    options = Options(choose(sandbox), jobs=jobs, records=records, fresh=again, keep_executed=True)

    def is_wanted(submission: Submission) -> bool:
        folder = submission.path.parent
        graded = course_root() / "autograded" / folder.parent.name / lab.slug
        return submission.path.is_file() and (again or needs_grading(folder, graded, lab.slug))

    def line(record: Record, resumed: bool) -> None:
        if record.status == "graded":  # nbgrader says why a submission is refused
            how = "before" if resumed else f"in {record.seconds:.1f} s"
            student = plain(record.student)
            print(f"executed {student} {how}", flush=True)

    try:
        grade_class(submitted, lab, options, line, wanted=is_wanted)
    except LabError as error:
        print(f"submissions are executed one at a time: {error}", flush=True)
        return None
    finally:
        close_pools()
    return records
