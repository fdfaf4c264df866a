"""A Python process that can import the course. After a time limit it is ended with everything that it started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import threeloops

__all__ = ["CODE", "HARNESS", "LIBRARY", "Finished", "changed_environment", "environment", "run_child"]

HARNESS = Path(__file__).resolve().parents[1]
LIBRARY = Path(threeloops.__file__).resolve().parent
CODE = HARNESS.parents[1] if HARNESS.parent.name == "grader" else HARNESS.parent
"""The folder that holds `grader/`, `lib/` and `benchmarks/`, or the folder of all packages if a wheel was installed."""


@dataclass(frozen=True)
class Finished:
    """The way in which a child ended. `returncode` is None if its time was up."""

    returncode: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def why(self) -> str:
        """Why it failed, in one line: how it ended, and the last line that it printed."""
        if self.returncode is None:
            return f"no answer within {self.seconds:.0f} s"
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        ended = f"signal {-self.returncode}" if self.returncode < 0 else f"exit {self.returncode}"
        return f"{ended}: {lines[-1]}" if lines else ended

    @property
    def answer(self) -> dict[str, Any] | None:
        """The JSON object in the last line that it printed, or None if it failed or printed none."""
        try:
            answer = json.loads(self.stdout.strip().splitlines()[-1]) if self.returncode == 0 else None
        except (ValueError, IndexError):
            return None
        return answer if isinstance(answer, dict) else None


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment with the course on the import path and this Python's programs on PATH.

    A value of None in `changes` removes a variable. It needs no installed course, and keeps the packages on PYTHONPATH.
    """
    paths = dict.fromkeys([str(HARNESS.parent), str(LIBRARY.parent), str(CODE), os.environ.get("PYTHONPATH", "")])
    course = {
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    return {k: v for k, v in {**os.environ, **course, **(changes or {})}.items() if v is not None}


@contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change environment variables of this process, and of the children that inherit them, until the block ends."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_child(arguments: Sequence[str], seconds: float, *, changes: Mapping[str, str | None] | None = None) -> Finished:
    """Run `python ARGUMENTS` for at most `seconds`. Nothing that the child does makes it raise.

    When the time is up, all processes that it started end too, even Jupyter kernels, which leave its process group.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=CODE,
        env=environment(changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    code: int | None = None
    out = err = ""
    try:
        out, err = process.communicate(timeout=max(0.1, seconds))
        code = process.returncode
    except subprocess.TimeoutExpired:
        _end_tree(process)
        with suppress(subprocess.TimeoutExpired):  # a grandchild that left the group may still hold the pipes
            out, err = process.communicate(timeout=2)
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
