"""Run a module of this library in a Python process of its own, which answers questions. The library need not be
installed.

The process is started by the first question and replaced when it has died. It ends with the process that asks, and a
fork of that process starts its own.
"""

import atexit
import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import threeloops
from threeloops import frames
from threeloops.frames import Buffer, FrameError, Late, TooLarge

__all__ = ["ModuleProcess", "ProcessLost", "command", "question_pipes"]

_START_SECONDS = 120.0
"""Time to import Triton or torch: seconds on an idle machine."""
_END_SECONDS = 10.0
"""Time for a process to end that has closed its pipes."""
_WORDS = 2000
"""How much of what the process printed last is reported when it dies."""
_RUN = (
    "import sys; sys.path[:0] = sys.argv[1:]; import threeloops; del sys.path[: len(sys.argv) - 1]; "
    "from {module} import main; main()"
)
_Answer = tuple[dict[str, Any], list[Any]]


def command(module: str) -> list[str]:
    """The command that calls `main` of a module, from the same copy of the library that this process imported.

    The library's folder is in the search path only until the package is found, so that nothing beside it can shadow
    another module. The current folder, which may hold a student's files, is never in it.
    """
    folders = [str(Path(folder).resolve().parent) for folder in threeloops.__path__]
    return [sys.executable, "-P", "-c", _RUN.format(module=module), *folders]


class ProcessLost(RuntimeError):
    """The process died, or was ended because it gave no answer in time. The next question starts another."""


class ModuleProcess:
    """One process that runs `main` of `module`, which answers frames with frames at `question_pipes`.

    Args:
        name: what messages call it.
        changes: environment variables to set, or to remove where the value is None. TMPDIR is a folder of its own.
        replaced_after: questions after which a new process takes over, for a module that leaks memory.
    """

    def __init__(
        self, name: str, module: str, changes: Mapping[str, str | None], replaced_after: float = math.inf
    ) -> None:
        self.name = name
        self.module = module
        self.changes = changes
        self.replaced_after = replaced_after
        self.process: subprocess.Popen[bytes] | None = None
        self.questions = self._begin = 0
        self._lock = threading.Lock()
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)

    def ask(self, tree: dict[str, Any], buffers: Sequence[Buffer] = (), seconds: float = 60.0) -> _Answer:
        """The answer to one question. Raises ProcessLost, with what the process printed meanwhile."""
        with self._lock:
            if self.process and (self.process.poll() is not None or self.questions >= self.replaced_after):
                self.end()
            try:
                if not self.process:
                    self._start()
                self.questions += 1
                self._begin = self._log_bytes()
                return self._answer(tree, buffers, seconds)
            except BaseException:  # also an interrupt, whose answer would be taken for that of the next question
                self.end()
                raise

    def printed(self) -> str:
        """The end of what the process has printed since the last question, on a new line."""
        size = self._log_bytes() - self._begin
        start = self._begin + max(0, size - _WORDS)
        words = os.pread(self._log.fileno(), min(size, _WORDS), start).decode(errors="replace").strip()
        return f"\n{words}" if words else ""

    def end(self) -> None:
        """Kill the process and its children, and remove its folder."""
        if self.process is None:
            return
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="threeloops-process-"))
        self._log: IO[bytes] = open(self.folder / "printed", "w+b")  # noqa: SIM115 (lives as long as the process)
        self.questions = self._begin = 0
        changes = {**self.changes, "TMPDIR": str(self.folder)}
        inherited = {name: text for name, text in os.environ.items() if name not in changes}
        self.process = subprocess.Popen(
            command(self.module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=inherited | {name: text for name, text in changes.items() if text is not None},
            bufsize=0,  # a fork meanwhile must not inherit half a question
            start_new_session=True,  # so an interrupt in the terminal spares it, and killing it kills its children
        )
        self._answer(None, (), _START_SECONDS)

    def _answer(self, tree: dict[str, Any] | None, buffers: Sequence[Buffer], seconds: float) -> _Answer:
        """Ask, unless `tree` is None, and wait for the answer."""
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        deadline = time.monotonic() + seconds
        try:
            if tree is not None:
                frames.send(process.stdin.fileno(), tree, buffers, deadline)
            return frames.receive(process.stdout.fileno(), deadline)
        except Late:
            what = "did not start" if tree is None else "gave no answer"
            raise ProcessLost(f"{self.name} {what} within {seconds:g} s{self.printed()}") from None
        except TooLarge as error:
            raise ProcessLost(f"{self.name} was not asked: {error}") from None
        except FrameError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            code = process.poll()
            cause = error if code is None else signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise ProcessLost(f"{self.name}'s process ended ({cause}){self.printed()}") from None

    def _log_bytes(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def _close(self) -> None:
        """Close this process's ends of the pipes."""
        if self.process is not None:
            for pipe in (self.process.stdin, self.process.stdout, self._log):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            self.process = None

    def _forget(self) -> None:
        """Forget the process in a fork, so that the parent's keeps running."""
        self._lock = threading.Lock()
        if self.process is not None:
            self.process.returncode = 0  # it is not this process's child and must not be waited for
            self._close()


def question_pipes() -> tuple[int, int]:
    """Return the descriptors where questions arrive and where answers go. The `main` of such a module calls this first.
    Everything that is printed from now on goes to stderr. `main` then sends one frame to say that it is ready."""
    requests = os.dup(0)
    answers = os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return requests, answers
