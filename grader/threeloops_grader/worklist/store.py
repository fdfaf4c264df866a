"""The records of a class on a disk that any number of graders share. They are the only state of grading.

A record's name is a hash of the submission and of everything that decides its points. The worker that graded a
submission writes the record itself, without replacing one that is there. So a worker that is lost, started twice, or of
another version of the code changes nobody's points.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from threeloops.files import replace_text

from threeloops_grader.grading.records import Record, to_json

__all__ = ["Executed", "Key", "RecordStore"]

_NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
_ROOM = 256 * 1024
"""Bytes. A record has a few thousand; executed cells may have more."""
_CLAIMED = (errno.EACCES, errno.EAGAIN)


@dataclass(frozen=True)
class Key:
    """Identifies one way of grading one submission. `decides` is the fingerprint of code, lab, packages and options."""

    student: str
    submission: str
    decides: str

    @classmethod
    def of(cls, student: str, content: bytes, decides: str) -> "Key":
        return cls(student, hashlib.sha256(content).hexdigest(), decides)

    @property
    def digest(self) -> str:
        named = f"{self.decides}\0{self.student}\0{self.submission}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(named).hexdigest()[:32]


@dataclass(frozen=True)
class Executed:
    """The results of the cells of one submission, by cell id, and the report's notes; nbgrader shows both."""

    cells: dict[str, dict[str, Any]]
    notes: list[str]

    @classmethod
    def of(cls, notebook: NotebookNode, notes: list[str]) -> "Executed":
        ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count is not None]
        return cls({c.id: {"execution_count": c.execution_count, "outputs": c.outputs} for c in ran}, notes)


class RecordStore:
    """The records of one lab in `folder`, which may lie on a disk that several machines share."""

    def __init__(self, folder: Path, lab: str) -> None:
        self.folder = folder / lab
        self._claims: int | None = None

    def path_of(self, key: Key) -> Path:
        return self.folder / f"{key.digest}.json"

    def load(self, key: Key) -> Record | None:
        """Return the accepted record, or None. A file that is cut off or belongs to another key is not a record."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            saved = json.loads(self.path_of(key).read_text(encoding="utf-8"))
            if saved["decides"] == key.decides and saved["submission"] == key.submission:
                return Record.from_dict(saved["record"])
        return None

    @contextlib.contextmanager
    def room(self, key: Key) -> Iterator[Callable[[], None]]:
        """Hold enough of the disk for a record while its submission is executed. Call the value before `keep`.

        Raises OSError if the disk is full, so that nothing is executed whose record could not be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / f".{key.digest}.{secrets.token_hex(4)}.room"

        def leave() -> None:
            place.unlink(missing_ok=True)

        try:
            _fill(place)
            yield leave
        finally:
            leave()

    def keep(self, key: Key, record: Record, *, replace: bool = False) -> Record:
        """Keep a record, unless this submission has one already. Return the record that counts.

        `replace` replaces it. Raises OSError if it cannot be written; nobody then sees half of it.
        """
        text = to_json({"decides": key.decides, "submission": key.submission, "record": asdict(record)})
        path = self.path_of(key)
        self.folder.mkdir(parents=True, exist_ok=True)
        if replace or not _add(path, text):
            accepted = None if replace else self.load(key)
            if accepted is not None:
                return accepted
            replace_text(path, text)  # the file that is there is not a record
        return record

    def others(self) -> Iterator[tuple[str, str, str]]:
        """Yield the student, submission and fingerprint of every record that is there, whoever wrote it."""
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                saved = json.loads(path.read_text(encoding="utf-8"))
                yield saved["record"]["student"], saved["submission"], saved["decides"]

    @contextlib.contextmanager
    def forgotten(self, decides: str, unless: type[Exception]) -> Iterator[None]:
        """Put the records with this fingerprint aside, so that all submissions are graded again. Bring them back if
        the exception `unless` says that nothing was graded."""
        aside = self.folder / ".forgotten"
        shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                if json.loads(path.read_text(encoding="utf-8"))["decides"] == decides:
                    aside.mkdir(exist_ok=True)
                    path.rename(aside / path.name)
        try:
            yield
        except unless:
            for path in aside.glob("*.json"):
                if not (self.folder / path.name).exists():
                    path.rename(self.folder / path.name)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    # The executed cells, for nbgrader

    def executed_path(self, key: Key) -> Path:
        return self.folder / "executed" / f"{key.digest}.json"

    def load_executed(self, key: Key) -> Executed | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            saved = json.loads(self.executed_path(key).read_text(encoding="utf-8"))
            return Executed(dict(saved["cells"]), list(saved["notes"]))
        return None

    def keep_executed(self, key: Key, executed: Executed) -> None:
        """Keep the cells of the execution that the record tells of; write them before the record."""
        path = self.executed_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, to_json(asdict(executed)))

    # Claims: they save work, and nothing depends on them

    def claim(self, key: Key) -> bool:
        """Return whether this process may grade a submission, because no other process is grading it now.

        The claim is a lock on one byte of a file, so it ends with its process. If the disk has no locks, every claim is
        granted.
        """
        try:
            fcntl.lockf(self._claims_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte_of(key))
        except OSError as error:
            return error.errno not in _CLAIMED
        return True

    def release(self, key: Key) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._claims_file(), fcntl.LOCK_UN, 1, _byte_of(key))

    def close(self) -> None:
        if self._claims is not None:
            os.close(self._claims)
            self._claims = None

    def _claims_file(self) -> int:
        if self._claims is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claims = os.open(self.folder / ".claims", os.O_RDWR | os.O_CREAT, 0o666)
        return self._claims


def _byte_of(key: Key) -> int:
    return int(key.digest[:15], 16)


def _add(path: Path, text: str) -> bool:
    """Write a new file, whole or not at all. Return False, and leave the file as it is, if the name is taken.

    A hard link is the rename that never replaces. A disk without links gets the file under its own name; if its writer
    is lost halfway, `load` takes the rest for no record.
    """
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        _write(half, text)
        os.link(half, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS or not half.exists():
            raise
        try:
            _write(path, text)
        except FileExistsError:
            return False
    finally:
        half.unlink(missing_ok=True)
    return True


def _fill(path: Path) -> None:
    with path.open("xb") as stream:
        stream.write(bytes(_ROOM))
        stream.flush()
        os.fsync(stream.fileno())


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
