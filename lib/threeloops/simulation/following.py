"""An event loop without a clock of its own: another process drives it, and tells it the time.

Behind the wall, the student's tasks run on this loop in the sandbox, and the program that tests them runs on the
grader's loop (`lab/checking/in_virtual_time`). Only the grader's loop keeps time. When no task is ready here, this side
sends the requests of its tasks and the time of its next timer, and stops until the grader's loop lets it continue.

The grader's loop calls `start`, `go_on`, `call_now`, `raise_error`, `raise_deadlock`, `raise_time_limit` and `end`. It
*tells* this side lists `[kind, …]`:

    begin   operation, lane, target, method, args, kwargs    await `target.method(*args)`
    cancel  operation, reason
    answer  question, kind, value                            to one of the questions below

The tasks here *ask* with lists as well:

    done    operation, kind, value
    ask     question, export, what          run a coroutine of the grader's, or take the next item of its generator, or
                                            close that
    stop    question, reason                cancel that
"""

import asyncio
import inspect
import math
import os
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from threeloops.simulation.event_loop import Deadlock, TimeLimit, VirtualTimeLoop, alone, cancel_all
from threeloops.simulation.one_core import keep_to
from threeloops.simulation.stand_ins import is_data, reason_of, stand_in

__all__ = ["BUSY", "call_now", "end", "go_on", "raise_deadlock", "raise_error", "raise_time_limit", "start"]

BUSY = -1
"""The number of the export that lets time pass: `busy` on this loop."""


class _FollowingLoop(VirtualTimeLoop):
    """A loop that stops whenever no task is ready."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self.grader: Callable[..., Any] = _nobody
        self.asked: list[list[Any]] = []
        self.errors: list[BaseException] = []
        self.operations: dict[int, Callable[[str | None], Any]] = {}
        self.questions: dict[int, asyncio.Future[Any]] = {}
        self.lanes: dict[int, _Lane] = {}
        self._numbers_asked = 0

    def idle(self) -> None:
        if self.is_ending:
            super().idle()
        self.stop()

    def begin_turns(self, moment: float) -> None:
        self._now = moment
        self._turns = 0

    def busy(self, seconds: float) -> None:
        if self.is_in_a_thread:
            super().busy(seconds)
        else:
            self.call_grader(BUSY, seconds)

    def call_grader(self, export: int, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the grader's. This takes up the time of the loop, or of the thread that calls it."""
        kind, value, moment = self.grader(export, self.is_in_a_thread, args, kwargs)
        if self._thread:
            self._thread.now = max(self._thread.now, moment)
        else:
            self._now = moment
        if kind == "raised":
            raise value
        return value

    def question(self, export: int, what: str) -> "tuple[int, asyncio.Future[Any]]":
        """Ask the grader for something that takes time."""
        self._numbers_asked += 1
        self.questions[self._numbers_asked] = future = self.create_future()
        self.asked.append(["ask", self._numbers_asked, export, what])
        return self._numbers_asked, future

    def outcome_of(self, error: BaseException) -> list[Any]:
        """Encode for the grader that an operation has failed."""
        if isinstance(error, asyncio.CancelledError):
            return ["cancelled", reason_of(error)]
        if isinstance(error, StopAsyncIteration):
            return ["ended", None]
        self.errors.append(error)
        return ["raised", len(self.errors) - 1]

    def on_begin(
        self, operation: int, lane: int | None, target: Any, method: str, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        async def work() -> Any:
            return await _call(self, target, method, args, kwargs)

        if lane is not None:
            if lane not in self.lanes:
                self.lanes[lane] = _Lane(self)
            self.operations[operation] = self.lanes[lane].add(operation, work)
            return

        async def operate() -> None:
            try:
                outcome = ["value", await work()]
            except BaseException as error:
                outcome = self.outcome_of(error)
            self.finish(operation, outcome)

        task = self.create_task(operate())
        task.add_done_callback(lambda _: self.finish(operation, ["cancelled", None]))  # the task may never have begun
        self.operations[operation] = task.cancel

    def finish(self, operation: int, outcome: list[Any]) -> None:
        if self.operations.pop(operation, None):
            self.asked.append(["done", operation, *outcome])

    def on_cancel(self, operation: int, reason: str | None) -> None:
        if cancel := self.operations.get(operation):
            cancel(reason)

    def on_answer(self, question: int, kind: str, value: Any) -> None:
        future = self.questions.pop(question)
        if not future.done():
            future.set_result((kind, value))


class _Lane:
    """A task that runs all operations on one asynchronous generator, like a single reader. This is necessary because a
    timeout or a task group around a `yield` belongs to the task of the reader."""

    def __init__(self, loop: _FollowingLoop) -> None:
        self._loop = loop
        self._todo: deque[tuple[int, Callable[[], Any]]] = deque()
        self._running: int | None = None
        self._more: asyncio.Future[None] = loop.create_future()
        self.task = loop.create_task(self._work())

    def add(self, operation: int, work: Callable[[], Any]) -> Callable[[str | None], Any]:
        self._todo.append((operation, work))
        if not self._more.done():
            self._more.set_result(None)

        def cancel(reason: str | None) -> None:
            if self._running == operation:
                self.task.cancel(reason)
            else:
                self._todo.remove((operation, work))
                self._loop.finish(operation, ["cancelled", reason])

        return cancel

    async def _work(self) -> None:
        while True:
            while not self._todo:
                self._more = self._loop.create_future()
                await self._more
            self._running, work = self._todo.popleft()
            try:
                outcome = ["value", await work()]
            except GeneratorExit:
                raise
            except BaseException as error:
                outcome = self._loop.outcome_of(error)
            self._loop.finish(self._running, outcome)
            self._running = None
            if self._loop.is_ending:
                return


class _State:
    """Holds the loop. There is only one at a time."""

    loop: _FollowingLoop | None = None
    cores: set[int] = set()


def start(core: int) -> None:
    """Make a loop for the next program, on the core of the grader's loop."""
    end()
    _State.cores = keep_to(core)
    _State.loop = _FollowingLoop()


def go_on(grader: Callable[..., Any], moment: float, told: list[list[Any]]) -> list[Any]:
    """Run until no task is ready. Returns the requests of the tasks, and the time of the next timer."""
    loop = _resumed(grader, moment, told)
    with alone():
        loop.run_forever()
    return _asked(loop)


def call_now(
    grader: Callable[..., Any],
    moment: float,
    told: list[list[Any]],
    target: Any,
    method: str,
    args: list[Any],
    kwargs: dict[str, Any],
) -> list[Any]:
    """Call one of the student's functions at once. Returns the kind of its result, the result, the names of its
    asynchronous methods, and the result of `go_on`."""
    loop = _resumed(grader, moment, told)
    with alone():
        events._set_running_loop(loop)
        value = _call(loop, target, method, args, kwargs)
    return [*_described(value), *_asked(loop)]


def raise_error(number: int) -> None:
    """Raise the exception that an operation raised."""
    raise _loop().errors[number]


def raise_deadlock(moment: float) -> None:
    """Raise Deadlock, naming the lines at which tasks wait."""
    raise Deadlock(f"deadlock at {moment:g} s: nothing is ready, and no timer runs" + _where())


def raise_time_limit(limit: float) -> None:
    """Raise TimeLimit, naming the lines at which tasks wait."""
    raise TimeLimit(f"not finished after {limit:g} s" + _where())


def end() -> None:
    """Cancel all tasks, and close the loop."""
    loop = _State.loop
    _State.loop = None
    if loop is not None:
        with alone(), suppress(Exception):
            cancel_all(loop)
            loop.close()
    if _State.cores:
        os.sched_setaffinity(0, _State.cores)
    _State.cores = set()


def _loop() -> _FollowingLoop:
    assert _State.loop is not None
    return _State.loop


def _where() -> str:
    loop = _loop()
    lines = loop.where().splitlines(keepends=True)
    return "".join(line for line in lines if not line.rstrip().endswith(" waits"))


def _resumed(grader: Callable[..., Any], moment: float, told: list[list[Any]]) -> _FollowingLoop:
    """Return the loop at this moment, after it has received the messages of the grader's loop."""
    loop = _loop()
    loop.grader = grader
    loop.begin_turns(moment)
    for kind, *rest in told:
        getattr(loop, f"on_{kind}")(*rest)
    return loop


def _asked(loop: _FollowingLoop) -> list[Any]:
    """Return the new requests, the time of the next timer, and whether a task is ready."""
    asked = loop.asked
    loop.asked = []
    timer = loop.next_timer()
    return [asked, None if timer == math.inf else timer, bool(loop._ready)]


def _call(loop: _FollowingLoop, target: Any, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return `target.method(*args)`, or the target itself if it is to be awaited."""
    if method == "__await__":
        return target
    function = getattr(target, method) if method else target
    return function(
        *(stand_in(loop, *description) for description in args),
        **{name: stand_in(loop, *kwargs[name]) for name in kwargs},
    )


def _described(value: Any) -> tuple[str, Any, list[str]]:
    """Tell how the grader's program may use a result: as data, by awaiting it, as a stream, or by its methods."""
    kind = type(value)
    if is_data(value):
        return "value", value, []
    if hasattr(kind, "__await__"):
        return "awaitable", value, []
    if hasattr(kind, "__anext__"):
        return "stream", value, []
    names = [name for name in dir(kind) if not name.startswith("_")]
    return "object", value, [name for name in names if inspect.iscoroutinefunction(getattr(kind, name, None))]


def _nobody(*_: Any) -> Any:
    raise RuntimeError("no program of a test runs now")
