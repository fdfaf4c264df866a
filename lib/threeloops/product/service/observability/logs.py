"""Structured logs: a line of JSON per event, written by a thread, so that a slow or full disk delays no request.

    {"time": "2024-06-01T12:00:00.123Z", "level": "info", "event": "request", "request_id": "…", "status": 200, …}

A log must not contain what a client sent. So only the fields of `_FIELDS` are written, whatever a caller passes. Text
that looks like a key or a password is removed. For an exception, the type and the places are written, but not the
message, which often quotes the input.

Warnings of other libraries (uvicorn, asyncio, …) go through the same thread. Otherwise the event loop itself would
write them to stderr, and wait if the reader of stderr is slow. If a library repeats a warning, it is written at most
ten times a minute, and `repeated` in its next line counts the omitted warnings.
"""

import contextlib
import json
import logging
import os
import queue
import re
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Logs", "configure_logs"]

_FIELDS = frozenset(
    "request_id trace_id client clients model version method path status code seconds queue_seconds ttft_seconds "
    "prompt_tokens completion_tokens finish_reason stream cached pid restarts host port signal dropped repeated".split()
)
_SECRET = re.compile(
    r"(?i)\b(?:authorization|api[-_ ]?key|password)[\"']?\s*[:=]\s*[\"']?(?:bearer\s+)?\S+"
    r"|\bbearer\s+\S+|\b(?:tl|sk)-[A-Za-z0-9_-]{8,}|(?<=://)[^/\s@]*@"
)
_LONGEST = 1000  # characters of a text
_QUEUED = 10_000  # lines
_BATCH = 1000
_END_SECONDS = 5.0
_REPEATS = 10
_REPEAT_SECONDS = 60.0
_OURS = "threeloops"


@dataclass
class _Repeats:
    """The messages that one line of another library's code has logged since a moment."""

    since: float
    written: int = 0
    left_out: int = 0
    latest: logging.LogRecord | None = None


class Logs(logging.Handler):
    """The destination of log lines while this is open. It never raises, and never waits for the disk.

    `dropped` counts lines that could not be written because the disk is full, the file is gone, or lines come too fast.
    If the file was moved away (logrotate), it is created again.
    """

    def __init__(self, path: Path | None = None):
        super().__init__()
        self.path = path
        self.dropped = 0
        self._counting = threading.Lock()
        self._lines: queue.Queue[bytes | None] = queue.Queue(_QUEUED)
        self._broken_line = False
        self._repeats: dict[tuple[str, int, object], _Repeats] = {}
        ours = logging.getLogger(_OURS)
        self._before = ours.propagate, ours.level
        self._thread = threading.Thread(target=self._write_all, name="logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.name.partition(".")[0] == _OURS or not self._is_repeated(record):
                self._lines.put_nowait(_line(record))
        except Exception:  # a full queue; and whatever cannot be formatted must not end a request
            self._drop(1)

    def close(self) -> None:
        """Write the queued lines, for at most 5 s, and end the thread. Later lines are dropped."""
        ours = logging.getLogger(_OURS)
        for logger in (ours, logging.getLogger()):
            logger.removeHandler(self)
        ours.propagate = self._before[0]
        ours.setLevel(self._before[1])
        end = time.monotonic() + _END_SECONDS
        with contextlib.suppress(queue.Full):
            for repeats in self._repeats.values():
                if repeats.left_out and repeats.latest is not None:
                    repeats.latest.repeated = repeats.left_out - 1
                    self._lines.put_nowait(_line(repeats.latest))
            self._lines.put(None, timeout=_END_SECONDS)
        self._repeats.clear()
        self._thread.join(timeout=max(0.0, end - time.monotonic()))
        super().close()

    def __enter__(self) -> "Logs":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_repeated(self, record: logging.LogRecord) -> bool:
        """Whether to leave it out. Told apart by the line of code and the exception's type: a message may differ each
        time."""
        kind = record.exc_info[0] if record.exc_info else None
        key = (record.pathname, record.lineno, kind)
        now = time.monotonic()
        seen = self._repeats.setdefault(key, _Repeats(now))
        if now - seen.since >= _REPEAT_SECONDS:
            if seen.left_out:
                record.repeated = seen.left_out
            seen = self._repeats[key] = _Repeats(now)
        if seen.written >= _REPEATS:
            seen.left_out += 1
            seen.latest = record
            return True
        seen.written += 1
        return False

    def _write_all(self) -> None:
        while True:
            lines = [self._lines.get()]
            last = False
            with contextlib.suppress(queue.Empty):
                while len(lines) < _BATCH:
                    lines.append(self._lines.get_nowait())
            if None in lines:
                lines = lines[: lines.index(None)]
                last = True
            self._write([line for line in lines if line is not None])
            if last:
                return

    def _write(self, lines: list[bytes]) -> None:
        """Write a batch of lines. The file is opened for each batch, so a file that was moved, removed, or closed by
        another thread needs no special case."""
        try:
            file = os.open(self.path, _APPEND, 0o640) if self.path else sys.stderr.fileno()
        except Exception:  # no such folder any more; a stderr that is closed, or is no file
            self._drop(len(lines))
            return
        try:
            for line in lines:
                self._write_line(file, line)
        finally:
            if self.path:
                os.close(file)

    def _write_line(self, file: int, line: bytes) -> None:
        text = b"\n" + line if self._broken_line else line  # what a full disk cut off stays on a line of its own
        try:
            written = os.write(file, text)
        except OSError:
            written = 0
        self._broken_line = 0 < written < len(text) or (self._broken_line and not written)
        self._drop(written < len(text))

    def _drop(self, lines: int) -> None:
        with self._counting:
            self.dropped += lines


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def configure_logs(path: Path | None = None, level: int = logging.INFO) -> Logs:
    """Write this library's log messages from `level` on, and warnings of all others, to a file or to stderr. Close the
    result at the end.

    Raises OSError if the file cannot be opened now. Later nothing is raised any more.
    """
    if path is not None:
        try:
            os.close(os.open(path, _APPEND, 0o640))
        except OSError as error:
            raise OSError(error.errno, f"logs cannot be written here: {error.strerror}", str(path)) from None
    logs = Logs(path)
    ours = logging.getLogger(_OURS)
    for logger in (ours, logging.getLogger()):
        logger.addHandler(logs)
    ours.setLevel(level)
    ours.propagate = False
    return logs


def _line(record: logging.LogRecord) -> bytes:
    message = record.getMessage()
    if record.name == "asyncio":  # the lines behind its first one are reprs, which hold whatever a task held
        message = message.partition("\n")[0]
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    entry: dict[str, Any] = {
        "time": f"{seconds}.{int(record.created % 1 * 1000):03}Z",
        "level": record.levelname.lower(),
        "event": _plain(message),
        "logger": record.name,
    }
    entry |= {name: _plain(value) for name, value in vars(record).items() if name in _FIELDS and value is not None}
    if record.exc_info and record.exc_info[0] is not None:
        entry["exception"] = record.exc_info[0].__name__
        entry["at"] = [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(record.exc_info[2])[-8:]
        ]
    return (json.dumps(entry, ensure_ascii=True, allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """Convert a value for JSON, without secrets. JSON escapes line breaks, so nobody can forge a line."""
    if isinstance(value, bool | int) or (isinstance(value, float) and abs(value) < float("inf")):
        return value
    return _SECRET.sub("[not shown]", str(value)[:_LONGEST])
