"""The grader's half of one submission: a process that runs setup and test cells and never a line of the student's code.

It starts as a warm process (`python -m threeloops_grader.processes.grader_process FD`) that forks once per submission.
Its parent asks for one cell at a time over a link of plain JSON.
"""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import gc
import io
import json
import linecache
import math
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from threeloops.forking import prepare_to_fork
from threeloops.lab.checking import wall
from threeloops.lab.checking.failure import Frame, frames_of
from threeloops.lab.course.lab_cells import OF_LAB

from threeloops_grader.authoring.names import used
from threeloops_grader.authoring.regions import NOT_SHOWN
from threeloops_grader.machine.faults import is_machines
from threeloops_grader.sandbox.confine import limit_memory
from threeloops_grader.sandbox.warmup import REPLAY, IdleSteps, compare_once, execute_once, import_all
from threeloops_grader.transport.link import FrameLink, LinkDead, WallError
from threeloops_grader.transport.tensors import torch_if_imported
from threeloops_grader.wall.messages import error_reply
from threeloops_grader.wall.outcome import Outcome
from threeloops_grader.wall.student import install_main_twin
from threeloops_grader.wall.wall import Wall
from threeloops_grader.witness.folders import Folders
from threeloops_grader.witness.functions import Functions

if TYPE_CHECKING:
    from threeloops_grader.wall.replays import Replays

__all__ = []

_TEST = "<test>"
_MAX_TEXT = 100_000
_MAX_MESSAGE = 4000
_MAX_PICTURE = 2 << 20
_MAX_PIXELS = 40_000_000
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_MAX_CHAIN = 100
_MIN_QUOTE = 4
"""The length below which a student's words stay if a check quotes them, because they also occur inside other words."""
_GRACE_SECONDS = 5.0
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)]) | {ord(c): c for c in "\n\t"}


class _GraderHalf:
    """Runs the cells of one submission against one student process."""

    def __init__(
        self,
        engine: FrameLink,
        student: FrameLink,
        meter: FrameLink,
        calls: socket.socket,
        replays: Replays | None = None,
    ) -> None:
        self.engine = engine
        self.oracles: set[str] = set()
        self.setups = 0
        self.main = types.ModuleType("__main__")
        install_main_twin()
        sys.modules["__main__"] = self.main
        self.wall = Wall(student, self.main, meter)
        self.wall.functions = Functions(calls)
        self.wall.folders = Folders(calls)
        wall.connection = self.wall
        self.wall.replays = replays
        if torch := torch_if_imported():
            seed = torch.manual_seed

            def forwarded(number: int) -> Any:
                """Seed both sides, because a test's seed counts on both."""
                self.wall.seed = int(number)
                return seed(number)

            torch.manual_seed = forwarded

    def serve(self) -> None:
        while True:
            try:
                request, _ = self.engine.receive()
                self._report(self.run(**request))
            except LinkDead:
                return
            except MemoryError:  # an answer left no memory for a report, and a crash needs none
                os.abort()

    def _report(self, result: Outcome) -> None:
        try:
            self.engine.send(asdict(result))
        except WallError:
            result.printed = "[more output than is kept]"
            result.student_printed = ""
            result.shown = []
            self.engine.send(asdict(result))

    def run(
        self,
        op: str,
        source: str,
        seconds: float,
        names: list[str] | None = None,
        setup: bool = False,
        answer: str = "",
    ) -> Outcome:
        """Run one cell. `op` is "setup" (here), "oracle" (a setup cell that runs only here), "student" (over there) or
        "test" (here, against the proxies).

        `answer` is the submitted text of the cell that a test judges.
        """
        gc.collect()  # an exception of an earlier test may still hold what an answer gave it
        result = Outcome()
        text = io.StringIO()
        self.wall.link.deadline = time.monotonic() + seconds
        self.wall.printed = ""
        self.wall.answer = answer
        self.wall.words = []
        signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_SECONDS)
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                if op == "student":
                    self._student(result, source, setup)
                elif op in ("setup", "oracle"):
                    self._setup(source, shared=op == "setup")
                    result.ok = True
                else:
                    result.value = self._test(source, names or [])
                    if self.wall.link.dead:
                        raise LinkDead(self.wall.link.dead)
                    result.ok = True
            except BaseException as error:
                self._fail(result, error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        result.printed, result.student_printed = _encodable(text.getvalue()), _encodable(self.wall.printed)
        result.dead = self.wall.link.dead or ""
        return result

    def _student(self, result: Outcome, source: str, setup: bool) -> None:
        answer = self.wall.request({"op": "cell", "source": source, "setup": setup})
        error = answer["error"] if type(answer) is dict else {}
        result.ok = error is None
        if error is not None:
            reply = error_reply(error)
            result.error = _line("".join(reply.classes[:1]).rpartition(".")[2][:80])
            result.message = _line(reply.message)
            result.where = _line(_place(reply.further_frames))
            result.quoted = result.message
            result.unquoted = NOT_SHOWN
        result.full = answer.get("full") is True
        result.shown = _shown(answer.get("shown"))

    def _setup(self, source: str, *, shared: bool) -> None:
        """Run a setup cell. If it is `shared`, the student's side runs it too, so its names mean the same there."""
        self.setups += 1
        file = f"{OF_LAB}{self.setups}>"
        _let_messages_quote(file, source)
        exec(compile(source, file, "exec"), self.main.__dict__)
        defined = {n for n, o in self.main.__dict__.items() if getattr(o, "__module__", None) == "__main__"}
        if shared:
            self.wall.setup_names |= defined - self.oracles
        else:
            self.oracles |= defined - self.wall.setup_names

    def _test(self, source: str, names: list[str]) -> float | None:
        """Run a test cell in a namespace of its own. Returns the value of its last line, if that is a number."""
        namespace = dict(self.main.__dict__)
        for name in sorted((used(source) & set(names)) - set(namespace)):
            with contextlib.suppress(KeyError):
                namespace[name] = self.wall.request({"op": "get", "name": name})
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        _let_messages_quote(_TEST, source)
        exec(compile(tree, _TEST, "exec"), namespace)
        if not isinstance(last, ast.Expr):
            return None
        value: Any = eval(compile(ast.Expression(last.value), _TEST, "eval"), namespace)
        return float(value) if type(value) in (int, float) else None

    def _fail(self, result: Outcome, error: BaseException) -> None:
        frames = frames_of(error.__traceback__, _TEST, top_level=True)
        result.ok = False
        result.value = None
        result.error = type(error).__name__
        result.message = _line(str(error))
        chain = list(_chain(error))
        words = [w for e in chain if (w := getattr(e, "__student_words__", None)) is not None]
        quoted = [text for text in self.wall.words if text not in words and text in str(error)]
        result.quoted = _line([*words, *quoted][0]) if words or quoted else None
        result.unquoted = _line(_without(str(error), [*words, *quoted]))
        lines = [f.lineno for e in chain for f in traceback.extract_tb(e.__traceback__) if f.filename == _TEST]
        result.line = max((line for line in lines if line), default=None)
        if isinstance(error, LinkDead):
            result.error = "NoAnswer"
            result.message = f"the submission gave no answer: {error}"
        title, lines = getattr(error, "__case__", ("", []))
        result.title = _line(title)
        result.lines = [_line(line) for line in lines]
        further = getattr(error, "further_frames", None)
        is_of_the_student = further is not None or quoted or getattr(error, "__student_words__", None) is not None
        if not is_of_the_student and is_machines(error):
            result.fault = _line(f"{type(error).__name__}: {error}")
        result.where = _line(_place(further or frames))


def _place(frames: Sequence[Frame]) -> str:
    """Return the innermost of these lines."""
    return f"{frames[-1].place}, line {frames[-1].line}" if frames else ""


def _let_messages_quote(file: str, source: str) -> None:
    """Let messages quote the lines of a cell."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and those that it was raised from or while handling."""
    for _ in range(_MAX_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _without(message: str, words: list[str]) -> str:
    if message in words:
        return NOT_SHOWN
    for text in words:
        if text in message:
            message = message.replace(text, NOT_SHOWN) if len(text) >= _MIN_QUOTE else message
        elif len(text.splitlines()) > 1:  # a check may have quoted it line by line: then only its title is its own
            message = f"{message.splitlines()[0]}\n{NOT_SHOWN}" if message else ""
    return message


def _shown(text: object) -> list[dict[str, str]]:
    """Return the outputs that a cell displayed, according to the student's side: plain text and PNG pictures only."""
    try:
        outputs = json.loads(text) if type(text) is str else []
    except (ValueError, RecursionError):
        return []
    plain = [_safe(output) for output in outputs if type(output) is dict] if type(outputs) is list else []
    return [output for output in plain if output]


def _safe(output: dict[str, object]) -> dict[str, str]:
    safe = {}
    plain = output.get("text/plain")
    picture = output.get("image/png")
    if type(plain) is str:
        safe["text/plain"] = _encodable(plain)
    if type(picture) is str and len(picture) <= _MAX_PICTURE:
        with contextlib.suppress(binascii.Error, ValueError, struct.error):
            content = base64.b64decode("".join(picture.split()), validate=True)
            if content.startswith(_PNG) and 0 < math.prod(struct.unpack(">II", content[16:24])) <= _MAX_PIXELS:
                safe["image/png"] = base64.b64encode(content).decode()
    return safe


def _encodable(text: str) -> str:
    """Return the part of a text that is kept, without lone surrogates, which no file can hold."""
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def _line(message: str) -> str:
    """Return a message without control characters, as a record may hold and a terminal may show it."""
    return _encodable(message[:_MAX_MESSAGE]).translate(_CONTROL)


def _main(fd: int, modules: list[str]) -> None:
    """Fork one grader half for each pair of sockets that arrives. `modules` are the imports of this lab's cells."""
    control = socket.socket(fileno=fd)
    import_all(modules)
    if torch := torch_if_imported():
        torch.set_num_threads(1)
    if REPLAY in modules:
        execute_once()
        prepare_to_fork()  # each replay is a fork
    later = IdleSteps(compare_once, prepare_to_fork)
    control.send(b"R")
    halves: dict[int, socket.socket] = {}
    while True:
        waiting: list[Any] = [control, *halves]
        ready, _, _ = select.select(waiting, [], [])
        for ended in [pidfd for pidfd in halves if pidfd in ready]:
            _report_end(ended, halves.pop(ended))
        if control not in ready:
            continue
        message, fds, *_ = socket.recv_fds(control, 65536, 4)
        if not message:
            return
        engine, student, calls, meter = (socket.socket(fileno=fd) for fd in fds)
        pid = os.fork()
        if pid:
            for ours in (student, calls, meter):
                ours.close()
            halves[os.pidfd_open(pid)] = engine
            later.after_fork(control)
            continue
        gc.freeze()  # so that collections skip everything imported before the fork
        control.close()
        for pidfd, other in halves.items():
            os.close(pidfd)
            other.close()
        config = json.loads(message)
        memory_mb = config["memory_mb"]
        replays = _replays(memory_mb, fds) if REPLAY in modules else None
        os.chdir(config["folder"])
        limit_memory(memory_mb)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash would leave hidden tests in the lab's folder
        _GraderHalf(FrameLink(engine), FrameLink(student), FrameLink(meter), calls, replays).serve()
        os._exit(0)


def _replays(memory_mb: int, not_its_own: Sequence[int]) -> Replays:
    from threeloops_grader.wall.replays import Replays  # imports torch

    return Replays(memory_mb, not_its_own)


def _report_end(pidfd: int, engine: socket.socket) -> None:
    """Tell the engine how a half ended that crashed or was killed; the engine may be waiting for an answer."""
    status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    os.close(pidfd)
    if status is not None and status.si_status:
        killed = status.si_code != os.CLD_EXITED
        how = signal.Signals(status.si_status).name if killed else f"exit code {status.si_status}"
        with contextlib.suppress(LinkDead, OSError):
            FrameLink(engine).send(asdict(Outcome(ended=how)))
    engine.close()


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
    os._exit(0)  # skips the seconds that the interpreter takes to tear down torch
