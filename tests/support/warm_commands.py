"""`python -m MODULE …` in a fork of one process that has imported nbgrader: importing it takes longer than most of its
commands.

A fork runs the module from the beginning, as `__main__`, with the arguments, folder, environment and output that it
would have as a process of its own. `tests/grader/classroom/test_class.py` also runs nbgrader's commands as users do,
and `tests/grader/test_cli.py` those of `threeloops`.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

IMPORTED = (
    "nbgrader.apps.nbgraderapp",
    "threeloops_grader.classroom.commands.group",
    "threeloops_grader.classroom.configuration",
    "threeloops_grader.classroom.enrolment",
    "threeloops_grader.classroom.exchange.collect",
    "threeloops_grader.classroom.late_policy",
    "threeloops_grader.classroom.nbgrader_plugin",
    "threeloops_grader.classroom.handout.bundle",
    "threeloops_grader.classroom.results.export",
    "threeloops_grader.pages.student_html",
    "threeloops_grader.pages.student_page",
    "typer.rich_utils",
)


class Warm:
    """The process that forks. Used by one thread."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        atexit.register(self.close)

    def run(
        self, words: list[str], cwd: Path, env: dict[str, str], timeout: float, killed_at: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m WORDS`. Raises TimeoutExpired, having ended everything that it started.

        With `killed_at`, the command and all that it started get SIGKILL just before it changes a file or folder for
        the n-th time, whichever it is. SQLite's own writes do not count.
        """
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in ("out", "err")]
            asked = {
                "words": words,
                "cwd": str(cwd),
                "env": env,
                "paths": list(map(str, paths)),
                "killed_at": killed_at,
            }
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                os.killpg(self._process.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout)
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(words, code, *(path.read_text(errors="replace") for path in paths))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@functools.cache
def warm() -> Warm:
    """That of this process, started at the first call and ended at exit."""
    return Warm()


def _serve() -> None:
    """Take requests until there are no more."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(asked)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(asked: dict) -> None:
    """Become the command. Never returns."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(asked["paths"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    code = 1
    if asked["killed_at"]:
        os.setsid()
        _die_at(asked["killed_at"])
    sys.argv[1:] = asked["words"][1:]
    sys.path[0] = asked["cwd"]
    try:
        runpy.run_module(asked["words"][0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.utime", "os.chmod", "sqlite3.connect"}


def _die_at(number: int) -> None:
    """End this session with SIGKILL just before its n-th change of a file or folder."""
    seen = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        seen += event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & 3))
        if seen >= number and event != "os.killpg":
            os.killpg(0, signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    _serve()
