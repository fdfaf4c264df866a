"""Try proposed answers in forks of one process, and report which tests of an exercise they pass.

There is no wall here, because a proposal consists of the course's own texts. But a proposal may loop or end its
process, so each one has its own limits. Checks of documented errors count as passed, because a student who copies a
formula can easily add `if …: raise ValueError` from the specification.
"""

import builtins
import contextlib
import fcntl
import functools
import linecache
import os
import select
import signal
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from threeloops.lab import check

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.authoring.manifest import SETUPS, Exercise, Kind, Manifest
from threeloops_grader.authoring.names import bound, used
from threeloops_grader.machine.child_process import LIBRARY, changed_environment
from threeloops_grader.sandbox import confine
from threeloops_grader.sandbox.warmup import import_all

__all__ = ["Bench", "Outcome", "Patience", "why_not_alone"]

_RETURNED = 1 << 7
"""The bit of a result that says that a function has returned. The others stand for tests, of which there are fewer."""

_HIGH = 241
"""A library function may write to a file descriptor if it is called with a small number. So results have a high one."""

_CELLS = 64
"""Cells kept in compiled form: the tests of an exercise are executed again for each of thousands of answers."""


@dataclass(frozen=True)
class Outcome:
    """The tests that an answer passes. `returned`: one of its functions has returned, so its result was looked at."""

    passed: frozenset[str] = frozenset()
    returned: bool = False


@dataclass(frozen=True)
class Patience:
    """The limits of one proposal: seconds of CPU time, and seconds altogether."""

    cpu_seconds: float = 10.0
    seconds: float = 30.0


class Bench:
    """A lab whose setup cells have run, to try answers on. Use it in a `with` statement.

    `modules` are imported once, before any answer is tried, so that their import does not count as an answer's time.
    `alone`: answers reach no other process, no network and nothing in the course's folders. A function that is called
    with arguments that it was not made for may end every process on the machine: `kill(-1)`.
    """

    def __init__(
        self,
        trusted: Manifest,
        patience: Patience | None = None,
        modules: Sequence[str] = (),
        *,
        alone: bool = False,
    ) -> None:
        self._trusted = trusted
        self._patience = patience or Patience()
        self._modules = modules
        self._alone = alone
        self._scratch = ""
        self._main = types.ModuleType("__main__")
        self._setup = self._main.__dict__
        self._given: dict[str, Any] = {}
        self._import = _importing(trusted.lab.withholds)
        self._sources = {part.test: trusted.text(part.test) for part in trusted.parts}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Run the setup cells in the lab's folder. The learner's record goes to a temporary folder.

        Raises LabError naming the setup cell that fails.
        """
        self._scratch = self._open.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        self._open.enter_context(changed_environment({"THREELOOPS_HOME": self._scratch}))
        self._open.enter_context(contextlib.chdir(self._trusted.lab.folder))
        self._open.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
        sys.modules["__main__"] = self._main
        for cell in self._trusted.master.cells:
            if self._trusted.kind(cell) in SETUPS:
                try:
                    _execute(cell.source, f"<{cell.id}>", self._setup)
                except Exception as error:
                    self._open.close()
                    raise LabError(f"lab {self._trusted.lab.slug}, cell {cell.id} fails: {error!r}") from error
        import_all(self._modules)
        if self._alone and (refused := why_not_alone()):
            self._open.close()
            raise LabError(f"functions of the library are tried in namespaces of their own: {refused}")
        oracles = [cell.source for cell in self._trusted.master.cells if self._trusted.kind(cell) is Kind.ORACLE]
        kept_back = {name for oracle in oracles for name in bound(oracle, imports=False)}
        self._given = {name: value for name, value in self._setup.items() if name not in kept_back}
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def earned(self, exercise: Exercise, texts: Sequence[str]) -> Iterator[Outcome]:
        """Yield the outcome of each text as the answer to the exercise."""
        done = 0
        while done < len(texts):
            for outcome in self._in_a_fork(exercise, texts[done:]):
                yield outcome
                done += 1
            if done < len(texts):  # the next text has ended the process, or was stopped
                yield Outcome()
                done += 1

    def _in_a_fork(self, exercise: Exercise, texts: Sequence[str]) -> Iterator[Outcome]:
        """Yield outcomes until a text ends the fork or takes too long. Each outcome arrives as a byte of bits."""
        reading, low = os.pipe()
        writing = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        os.close(low)
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
                os.setpgid(0, 0)
                if self._alone:
                    confine.go_on_alone([str(LIBRARY), str(self._trusted.lab.folder)])
                    tempfile.tempdir = self._scratch
                self._try_all(exercise, texts, writing)
            os._exit(0)
        os.close(writing)
        try:
            for _ in texts:
                result = os.read(reading, 1) if select.select([reading], [], [], self._patience.seconds)[0] else b""
                if not result:
                    return
                passed = frozenset(test for bit, test in enumerate(exercise.tests) if result[0] >> bit & 1)
                yield Outcome(passed, bool(result[0] & _RETURNED))
        finally:
            for kill in (os.kill, os.killpg):  # the group may not exist yet
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reading)

    def _try_all(self, exercise: Exercise, texts: Sequence[str], writing: int) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        sys.stdout = sys.stderr = os.fdopen(nothing, "w")
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the signal ends the process
        check.raises = lambda *_, **__: None  # type: ignore[method-assign]
        check.accepts = lambda *_, **__: None  # type: ignore[method-assign]
        for text in texts:
            signal.setitimer(signal.ITIMER_PROF, self._patience.cpu_seconds)
            bits = self._bits(exercise, text)
            os.write(writing, bytes([bits]))

    def _bits(self, exercise: Exercise, text: str) -> int:
        student = self._given | {"__builtins__": {**vars(builtins), "__import__": self._import}}
        try:
            _execute(text, f"<{exercise.id}>", student)
        except BaseException:
            return 0
        bits = 0
        exported = bound(text)
        for bit, test in enumerate(exercise.tests):
            calls = _Calls()
            source = self._sources[test]
            names = (exported & used(source)) - self._setup.keys()
            try:
                namespace = self._setup | {name: calls.counted(student[name]) for name in names}
                _execute(source, f"<{test}>", namespace)
            except BaseException:
                bits |= _RETURNED * (calls.returned > 0)
            else:
                bits |= (1 << bit | _RETURNED) * (calls.returned > 0)
        return bits


def why_not_alone() -> str | None:
    """Return why answers cannot be tried alone on this machine, or None if they can."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        try:
            confine.go_on_alone([])
        except (OSError, AttributeError) as error:  # another system may have no such call
            os.write(writing, (str(error) or repr(error)).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as reason:
        return reason.read() or None


class _Calls:
    """Counts the calls of an answer's functions that have returned."""

    def __init__(self) -> None:
        self.returned = 0

    def counted(self, answer: Any) -> Any:
        """Return a function that counts its calls. Anything else is returned unchanged, and counts as one call."""
        if not isinstance(answer, types.FunctionType):
            self.returned += 1
            return answer

        @functools.wraps(answer)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = answer(*args, **kwargs)
            self.returned += 1
            return result

        return call


def _importing(withheld: Iterable[str]) -> Any:
    """Return an `__import__` for which withheld modules do not exist."""
    gone = tuple(f"{module}." for module in withheld)

    def imports(name: str, *others: Any) -> Any:
        for module in (name, *(f"{name}.{part}" for part in (others[2] if len(others) > 2 else None) or ())):
            if f"{module}.".startswith(gone):
                raise ImportError(f"{module} is withheld in graded runs")
        return builtins.__import__(name, *others)

    return imports


def _execute(text: str, file: str, namespace: dict[str, Any]) -> None:
    """Execute a cell under a file name that `inspect.getsource` can read, which Triton needs."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(_compiled(text, file), namespace)


@functools.lru_cache(_CELLS)
def _compiled(text: str, file: str) -> types.CodeType:
    return compile(text, file, "exec")
