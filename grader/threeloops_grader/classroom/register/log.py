"""The class's log, `class/log.jsonl`: who changed which points, and when. Lines are only ever appended.

Each line holds the hash of the line before it, so a line that somebody edits or removes later is noticed.
"""

import fcntl
import hashlib
import json
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.register.settings import class_folder

__all__ = ["append", "history", "last_fingerprint", "lines", "log_path", "moved", "students_in"]

_CHUNK = 1 << 16


def log_path(root: Path | None = None) -> Path:
    return class_folder(root) / "log.jsonl"


def append(command: str, lab: str = "", root: Path | None = None, **details: Any) -> None:
    """Append a line about a command that was carried out, in one write, on the disk before this returns.

    Raises LabError if the line cannot be written. The command's own work stands.
    """
    path = log_path(root)
    entry = {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
        "who": _user(),
        "command": command,
        "lab": lab,
        **details,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _append(file, entry)
    except OSError as error:
        raise LabError(
            f"`{command}` did its work, but its line in the log {path} could not be written ({error.strerror}): note "
            "who ran it and when elsewhere, and see that the next command can write there"
        ) from error


def _append(file: BinaryIO, entry: dict[str, Any]) -> None:
    size = os.fstat(file.fileno()).st_size
    last = _last_line(file, size)
    line = json.dumps({**entry, "previous": _digest(last)}, ensure_ascii=True).encode() + b"\n"
    if last and not last.endswith(b"\n"):  # a line that a power cut left unfinished stays as it is
        line = b"\n" + line
    try:
        if file.write(line) != len(line):
            raise OSError(28, os.strerror(28))
        os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


def _last_line(file: BinaryIO, size: int) -> bytes:
    start = size
    tail = b""
    while start and b"\n" not in tail[:-1]:
        step = min(_CHUNK, start)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]


def _digest(line: bytes) -> str:
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()[:16] if line else ""


def _user() -> str:
    """Return the account's name on this machine. Environment variables, which anybody can set, do not count."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def lines(root: Path | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of the log, oldest first, and a sentence per line that is damaged or does not follow the line
    before it."""
    path = log_path(root)
    if not path.exists():
        return [], []
    if not stat.S_ISREG(path.stat().st_mode):
        raise LabError(f"{path} is not an ordinary file; move it away")
    entries = []
    faults = []
    before = b""
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        try:
            entry = json.loads(line)
            texts = [entry[name] for name in ("when", "who", "command", "lab")]
            tables = entry.get("points", {}), _about(entry)
            if not all(isinstance(text, str) for text in texts) or not all(isinstance(part, dict) for part in tables):
                raise ValueError
        except (ValueError, TypeError, KeyError):
            faults.append(f"{path}, line {number} is damaged: a write was cut off, or somebody edited it")
        else:
            if entry.get("previous") != _digest(before):
                faults.append(f"{path}, line {number}: the lines before it were edited or removed after it was written")
            entries.append(entry)
        before = line
    return entries, faults


def last_fingerprint(lab: str, root: Path | None = None) -> str | None:
    """Return the fingerprint with which the lab was last graded, or None if the log does not know it."""
    prints = [
        entry["fingerprint"]["after"] for entry in lines(root)[0] if entry["lab"] == lab and "fingerprint" in entry
    ]
    return prints[-1] if prints else None


def moved(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, list[float | None]]:
    """Return the old and the new points of every student whose points differ."""
    return {
        student: [old.get(student), new.get(student)]
        for student in sorted({*old, *new})
        if old.get(student) != new.get(student)
    }


def history(entries: list[dict[str, Any]], lab: str = "", student: str = "") -> Iterator[str]:
    """Yield a line of text per entry, of one lab or of all, and of one student if one is named."""
    for entry in entries:
        points = entry.get("points", {})
        about = _about(entry)
        if (student and student not in {*points, *about}) or (lab and entry["lab"] not in (lab, "")):
            continue
        changes = [
            f"{name} {_move(change)}"
            for name, change in points.items()
            if student == name or (not student and _is_move(change))
        ]
        changes += [f"{name} {text}" for name, text in about.items() if text and student in ("", name)]
        more = f" ({entry['note']})" if entry.get("note") else ""
        line = f"{entry['when']} UTC  {entry['who']}  {entry['command']}{more}"
        yield f"{line}: {', '.join(changes)}" if changes else line


def students_in(entries: list[dict[str, Any]]) -> set[str]:
    """Return the ids of all students whom the log names."""
    return {name for entry in entries for name in (*entry.get("points", {}), *_about(entry))}


def _about(entry: Mapping[str, Any]) -> Any:
    """Return what an entry says about students beside their points, by id. There is no text if the entry concerns one
    student whom only their own history names."""
    about = entry.get("about", {})
    return {about: ""} if isinstance(about, str) else about


def _is_move(change: Any) -> bool:
    return isinstance(change, list) and change[0] != change[1]


def _move(change: Any) -> str:
    if not isinstance(change, list):
        return _number(change)
    return (
        f"{_number(change[0])} -> {_number(change[1])}"
        if change[0] != change[1]
        else f"{_number(change[1])}, as before"
    )


def _number(value: float | None) -> str:
    return "no points" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
