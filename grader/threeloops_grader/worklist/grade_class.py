"""Grade a class: every submission goes through the wall, in parallel, and gets its own record, which the others cannot
affect.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from nbformat import NotebookNode

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.grading.fingerprint import fingerprint
from threeloops_grader.grading.grade import Options, failed_record, grade_notebook
from threeloops_grader.grading.records import ClassReport, Record
from threeloops_grader.grading.scoring import Report, start_processes
from threeloops_grader.machine.faults import MachineFault, cause
from threeloops_grader.submissions import reading as submissions
from threeloops_grader.submissions.reading import BadSubmission, Submission
from threeloops_grader.worklist.share import Share
from threeloops_grader.worklist.store import Executed, Key, RecordStore

__all__ = ["OnRecord", "decides", "grade_class"]

OnRecord = Callable[[Record, bool], None]
_LOOK_AGAIN_SECONDS = 0.5


def decides(lab: Lab, options: Options) -> str:
    """Return the fingerprint of everything that decides the points of a class graded with `options`."""
    return fingerprint(lab, options.limits, options.sandbox, options.only, options.visible)


def grade_class(
    folder: Path,
    lab: Lab,
    options: Options,
    on_record: OnRecord = lambda record, resumed: None,
    *,
    share: Share | None = None,
    wanted: Callable[[Submission], bool] = lambda submission: True,
) -> ClassReport:
    """Grade every submission below `folder`, or those of a share, `options.jobs` at a time. Calls `on_record` for each
    as it is done.

    An interrupted run continues where it stopped: a submission is not executed again if its record was kept and nothing
    that decides its points has changed since. If another process is grading a submission at this moment, wait for its
    record. Submissions that are not `wanted` are left out.

    Raises:
        LabError, FileNotFoundError: raised before anybody is graded, as `submissions.find` does.
        MachineFault: the machine or the course is at fault, or a record could not be written. Finished records are
            kept.
    """
    handed_in = [s for s in submissions.find(folder, lab) if (share is None or share.holds(s.student)) and wanted(s)]
    store = RecordStore(options.records, lab.slug) if options.records is not None else None
    grader = _Grader(folder, lab, options, store, decides(lab, options))
    done: dict[int, Record] = {}
    waiting = dict(enumerate(handed_in))
    with ThreadPoolExecutor(max_workers=options.jobs) as workers:
        try:
            while waiting:
                futures = {workers.submit(grader.grade, submission): n for n, submission in waiting.items()}
                for future in as_completed(futures):
                    if (graded := future.result()) is None:
                        continue  # another process is at it
                    record, resumed = graded
                    number = futures[future]
                    done[number] = record
                    del waiting[number]
                    on_record(record, resumed)
                if waiting:
                    time.sleep(_LOOK_AGAIN_SECONDS)
        finally:
            workers.shutdown(cancel_futures=True)
            if store is not None:
                store.close()
    return ClassReport(lab.slug, options.sandbox, [done[n] for n in range(len(handed_in))])


class _Grader:
    """Grades the submissions of one class."""

    def __init__(self, folder: Path, lab: Lab, options: Options, store: RecordStore | None, decides: str) -> None:
        self.folder = folder
        self.lab = lab
        self.options = options
        self.store = store
        self.decides = decides

    def grade(self, submission: Submission) -> tuple[Record, bool] | None:
        """Return a submission's record, and whether it was there already. None: another process is grading it.

        Raises a MachineFault that names the student at whom grading stopped.
        """
        try:
            content = submissions.content(submission, self.folder)
            if self.store is None:
                return self._record(submission, submissions.parse(content)), False
            key = Key.of(submission.student, content, self.decides)
            if (earlier := self._earlier(self.store, key)) is not None:
                return earlier, True
            notebook = submissions.parse(content)
            # Before the claim: a worker that is lost while they start has not held up or begun a submission.
            start_processes(self.lab, self.options.sandbox, visible=self.options.visible)
            if not self.store.claim(key):
                return None
            try:
                if (earlier := self._earlier(self.store, key)) is not None:  # finished since the look above
                    return earlier, True
                return self._kept(self.store, key, submission, notebook)
            finally:
                self.store.release(key)
        except BadSubmission as error:
            return failed_record(submission.student, self.lab, self.options, str(error)), False
        except LabError:
            raise
        except MachineFault as error:
            raise MachineFault(f"grading stopped at {submission.student}, nobody lost points: {error}") from error
        except Exception as error:
            why = cause(error)
            raise MachineFault(f"grading stopped at {submission.student}, nobody lost points: {why}") from error

    def _earlier(self, store: RecordStore, key: Key) -> Record | None:
        if self.options.fresh or (self.options.keep_executed and store.load_executed(key) is None):
            return None
        return store.load(key)

    def _kept(
        self, store: RecordStore, key: Key, submission: Submission, notebook: NotebookNode
    ) -> tuple[Record, bool]:
        report = Report()
        with store.room(key) as leave_room:
            record = self._record(submission, notebook, report)
            leave_room()
            if record.status == "failed":
                return record, False
            if self.options.keep_executed:
                store.keep_executed(key, Executed.of(report.notebook, report.notes))
            accepted = store.keep(key, record, replace=self.options.fresh)
        return accepted, accepted is not record

    def _record(self, submission: Submission, notebook: NotebookNode, report: Report | None = None) -> Record:
        return grade_notebook(notebook, self.lab, submission.student, self.options, report=report)
