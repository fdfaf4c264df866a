"""A Python process that can import the course, bounded in time, and gone with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

CODE = Path(__file__).resolve().parents[2]
"""The folder that holds `grader/`, `lib/` and `benchmarks/`."""

_DRAIN_SECONDS = 2.0


@dataclass(frozen=True)
class Finished:
    """How a child ended. `returncode` is None where it was ended because its time was up."""

    returncode: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def why(self) -> str:
        """Why it failed, in a line: its last word, or how it ended."""
        if self.returncode is None:
            return f"no answer within {self.seconds:.0f} s"
        said = (self.stderr.strip() or self.stdout.strip()).splitlines()
        ended = f"signal {-self.returncode}" if self.returncode < 0 else f"exit {self.returncode}"
        return f"{ended}: {said[-1]}" if said else ended


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment with the course on the import path and this Python's programs on PATH.

    A value of None in `changes` removes a variable. Works in a virtual environment, and where packages lie on
    PYTHONPATH and the course is not installed at all.
    """
    found = dict(os.environ)
    paths = [str(CODE), str(CODE / "lib"), found.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", os.defpath)])
    for name, value in (changes or {}).items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found


def run_child(
    arguments: Sequence[str],
    seconds: float,
    *,
    changes: Mapping[str, str | None] | None = None,
    cwd: Path = CODE,
) -> Finished:
    """Run `python ARGUMENTS` for at most `seconds`. Never raises for what the child does.

    When its time is up, everything that it started ends with it: Jupyter kernels too, which leave its process group.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=max(0.1, seconds))
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        code = None
        _end_tree(process)
        out, err = _drained(process)
    except BaseException:
        _end_tree(process)
        raise
    return Finished(code, out, err, time.perf_counter() - started)


def _end_tree(process: subprocess.Popen[str]) -> None:
    with suppress(psutil.NoSuchProcess):
        for below in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                below.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _drained(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What an ended child had printed; nothing where a grandchild that left the group still holds its pipes."""
    try:
        return process.communicate(timeout=_DRAIN_SECONDS)
    except subprocess.TimeoutExpired:
        return "", ""
