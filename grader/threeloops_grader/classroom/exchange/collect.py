"""nbgrader's collect with guarantees that none of its options offers.

nbgrader follows links in a submission. It only warns if a folder belongs to somebody other than the student it names,
and it takes the time of submission from a file in that folder. It stops at the first folder that it cannot read, after
it has deleted that student's earlier submission. `nbgrader_config.py` installs this class.
"""

import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default import ExchangeCollect

from threeloops_grader.classroom.exchange.attempts import attempts_folder, attempts_of, first, keep
from threeloops_grader.classroom.exchange.copying import copy_plain
from threeloops_grader.classroom.exchange.swap import put_in_place
from threeloops_grader.classroom.exchange.times import utc
from threeloops_grader.classroom.register.settings import load
from threeloops_grader.submissions.folder import TIMESTAMP, is_student, student_name
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["GuardedCollect"]

_PATIENCE = 600.0
"""Seconds that writing a submission may take."""


class GuardedCollect(ExchangeCollect):
    """A collector that collects every valid submission. It names each other one, leaves it in its place, and ends with
    an error."""

    def init_src(self) -> None:
        self._refused: list[str] = []
        self._earlier: list[dict[str, Any]] = []
        self._rule = load(Path(self.coursedir.root)).attempts
        super().init_src()
        self.src_records: list[dict[str, Any]] = [record for record in self.src_records if record["username"]]

    def _path_to_record(self, path: str) -> dict[str, Any]:
        """Return the record of a folder, without a user if it cannot be a submission."""
        name = os.path.basename(path)
        record: dict[str, Any] = {"filename": name, "username": "", "timestamp": datetime.min}
        with self._naming(name):
            student, handed_in = _read_name(name, self.coursedir.assignment_id)
            self._require_own(Path(path), student)
            record.update(username=student, timestamp=handed_in)
        return record

    def _sort_by_timestamp(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a student's hand-ins, with the one that counts in front."""
        newest_first: list[dict[str, Any]] = super()._sort_by_timestamp(records)
        valid = [record for record in newest_first if record["username"]]
        most = first(self._rule)
        if most is not None and len(valid) > most:
            self.log.warning("%s: %d attempts, of which %d count", valid[0]["username"], len(valid), most)
            return valid[-most:]
        if self._rule == "best":
            self._earlier += valid[:0:-1]
        return newest_first

    def _require_own(self, folder: Path, student: str) -> None:
        """Check that the student or the collecting user owns the folder. Raises BadSubmission if not."""
        owner = folder.lstat().st_uid
        if not self.check_owner or owner == os.geteuid():
            return
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"user {owner}"
        if name != student:
            raise BadSubmission(
                f"it says that it is {student_name(student)}'s and belongs to {name}; remove it, or set "
                "ExchangeCollect.check_owner = False where all students share one Unix user"
            )

    def copy_files(self) -> None:
        self.log.info("Processing %d submissions of %s", len(self.src_records), self.coursedir.assignment_id)
        for record in self._earlier:
            with self._naming(record["filename"]):
                self._keep(record)
        for record in self.src_records:
            with self._naming(record["filename"]):
                self._collect(record)
        if self._refused:
            raise ExchangeError(f"not collected: {', '.join(self._refused)}; why stands above, all others are there")

    def _collect(self, record: dict[str, Any]) -> None:
        student = record["username"]
        lab = self.coursedir.assignment_id
        handed_in = record["timestamp"]
        target = Path(self.coursedir.format_path(self.coursedir.submitted_directory, student, lab))
        had = self._time_of(target)
        others = attempts_of(Path(self.coursedir.root), lab, student) if self._rule == "best" else []
        is_newer = had is None or handed_in > had or (first(self._rule) is not None and handed_in != had)
        if target.is_dir() and (
            any(attempt.is_timed and attempt.time == handed_in for attempt in others)
            or not ((self.update and is_newer) or (self.before_duedate and had != handed_in))
        ):
            more = "no newer submission to collect" if self.update else "is there already; --update fetches newer ones"
            self.log.info("%s: %s", student_name(student), more)
            return
        source = Path(self.inbound_path, record["filename"])
        with self._copied(source, target.with_name(f".{target.name}.new"), handed_in) as new:
            self._compare_times(source, student, handed_in)
            if self._rule == "best":
                keep(Path(self.coursedir.root), lab, student, target)
            put_in_place(new, target)
        self.log.info("%s: collected", student_name(student))

    def _keep(self, record: dict[str, Any]) -> None:
        """Keep an attempt that was handed in before the newest one."""
        root = Path(self.coursedir.root)
        lab = self.coursedir.assignment_id
        student = record["username"]
        if any(a.is_timed and a.time == record["timestamp"] for a in attempts_of(root, lab, student)):
            return
        half = attempts_folder(root, lab) / ".new"
        with self._copied(Path(self.inbound_path, record["filename"]), half, record["timestamp"]) as new:
            keep(root, lab, student, new)
        self.log.info("%s: an earlier attempt is kept", student_name(student))

    @contextmanager
    def _copied(self, source: Path, new: Path, handed_in: datetime) -> Iterator[Path]:
        """Copy a hand-in to a new folder, with its time, and remove that folder if it is still there at the end."""
        shutil.rmtree(new, ignore_errors=True)
        try:
            copy_plain(source, new)
            (new / TIMESTAMP).unlink(missing_ok=True)
            (new / TIMESTAMP).write_text(f"{handed_in:%Y-%m-%d %H:%M:%S.%f} UTC", encoding="ascii")
            yield new
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _time_of(self, folder: Path) -> datetime | None:
        try:
            time: datetime | None = self.coursedir.get_existing_timestamp(str(folder))
            return time
        except ValueError:  # an earlier collection left text that is not a time
            return None

    def _compare_times(self, source: Path, student: str, handed_in: datetime) -> None:
        """Warn if a folder changed after the time in its name. Its owner can choose the name, but not the time of the
        last change."""
        changed = datetime.fromtimestamp(max(path.lstat().st_ctime for path in (source, *source.iterdir())), UTC)
        if (changed.replace(tzinfo=None) - handed_in).total_seconds() > _PATIENCE:
            notice = "%s: handed in at %s by its name, and written to at %s (UTC); the late policy goes by the first"
            self.log.warning(notice, student_name(student), f"{handed_in:%Y-%m-%d %H:%M}", f"{changed:%Y-%m-%d %H:%M}")

    @contextmanager
    def _naming(self, folder: str) -> Iterator[None]:
        """Report a fault of one folder, and let the others be collected."""
        try:
            yield
        except (BadSubmission, OSError) as error:
            name = student_name(folder)
            self.log.error("%s is not collected: %s", name, error)
            self._refused.append(name)


def _read_name(folder: str, assignment: str) -> tuple[str, datetime]:
    """Return the student and the time in `student+assignment+time+random`. Raises BadSubmission if it is another
    name."""
    student, _, rest = folder.rpartition(f"+{assignment}+")
    try:
        handed_in = utc(rest.rpartition("+")[0] or rest)
    except (ValueError, OverflowError):  # dateutil's own is a ValueError
        raise BadSubmission("its name is not one that `nbgrader submit` gives") from None
    if not is_student(student_name(student)):
        raise BadSubmission("it names nobody who can be a student")
    return student, handed_in
