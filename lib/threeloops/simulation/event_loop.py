"""An asyncio event loop in virtual time: nobody waits, and every run repeats exactly.

When no task is ready, the clock jumps to the next timer, so `asyncio.sleep(3600)` takes no time and ends at exactly
3,600 s. Computation takes no virtual time, unless it says so with `busy`. A task that is `busy` for some time, without
an `await`, delays the others by exactly that time, as it would in a real service.

Queues, locks, semaphores, timeouts and task groups of asyncio run unmodified, and so do `asyncio.to_thread` and
`run_in_executor`. Sockets, pipes and signals do not exist here.
"""

import asyncio
import heapq
import linecache
import math
import re
from asyncio import events, tasks
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Deadlock", "TimeLimit", "VirtualTimeLoop", "alone", "busy", "cancel_all", "now", "run", "run_on"]

_THREADS = 32
"""Workers of the default executor."""

_HERE = str(Path(__file__).parent)

_MOST_TURNS = 200_000
"""Turns of the loop at one moment after which a task counts as spinning."""


class Deadlock(RuntimeError):
    """Tasks wait for each other or for something that nobody will do: nothing is ready, and no timer runs."""


class TimeLimit(RuntimeError):
    """The program was still running at its limit of virtual time, or it spins without letting time pass."""


@dataclass
class _Thread:
    """A call in an executor, which has a clock of its own until it returns."""

    now: float


class _Timer(asyncio.TimerHandle):
    """Timers of the same moment run in the order in which they were set."""

    __slots__ = ("order",)
    order: int
    _scheduled: bool

    def __lt__(self, other: Any) -> bool:
        return (self.when(), self.order) < (other.when(), other.order)


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An event loop whose `time()` starts at 0 s and moves only when nothing is ready, or in `busy`.

    Functions in an executor run when a worker is free, one at a time, and take as long as their `busy` says. The loop
    continues meanwhile. An executor has `max_workers` workers.
    """

    _scheduled: list[_Timer]
    _selector: Any
    _clock_resolution: float
    _timer_cancelled_count: int
    is_ending = False
    """True once the program is over, while the remaining tasks are being cancelled."""

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()
        self._selector = self  # where BaseEventLoop would wait for the operating system, it calls `select` below
        self._clock_resolution = 1e-9
        self._now = 0.0
        self._limit = limit
        self._turns = self._timers = 0
        self._thread: _Thread | None = None
        self._free_at: WeakKeyDictionary[Any, list[float]] = WeakKeyDictionary()
        self._numbers: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._tasks = 0
        self.set_task_factory(_remember)

    def time(self) -> float:
        return self._thread.now if self._thread else self._now

    @property
    def is_in_a_thread(self) -> bool:
        """Tell whether a function in an executor is running."""
        return self._thread is not None

    @contextmanager
    def own_clock(self) -> Iterator[_Thread]:
        """Charge the code in this block to a separate clock, as in an executor's thread."""
        self._thread = thread = _Thread(self._now)
        try:
            yield thread
        finally:
            self._thread = None

    def busy(self, seconds: float) -> None:
        """Let `seconds` pass without a turn of the loop."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds = {seconds}: expected a finite time, at least 0")
        if self._thread:
            self._thread.now += seconds
        else:
            self._now += seconds

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> _Timer:
        timer = _Timer(when, callback, args, self, context)
        timer.order = self._timers = self._timers + 1
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run `function` when one of the executor's workers is free; cancelled before that, it never runs."""
        workers = _THREADS if executor is None else getattr(executor, "_max_workers", _THREADS)
        waiting = self._free_at.setdefault(executor or self, [0.0] * workers)
        future = self.create_future()
        pending: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [(function, args)]

        def start() -> None:
            if future.cancelled():
                return
            if waiting[0] > self._now:
                self.call_at(waiting[0], start)
                return
            work, given = pending.pop()
            with self.own_clock() as thread:
                try:
                    result, error = work(*given), None
                except Exception as raised:
                    result = None
                    error = raised
            heapq.heapreplace(waiting, thread.now)
            self.call_at(thread.now, _settle, future, result, error)

        self.call_soon(start)
        return future

    def select(self, timeout: float | None) -> list[Any]:
        """Let virtual time pass instead of waiting for `timeout` seconds."""
        if timeout == 0:
            self.count_a_turn()
        else:
            self.idle()
        return []

    def count_a_turn(self) -> None:
        """Raise TimeLimit after many turns without a jump."""
        self._turns += 1
        if self._turns > _MOST_TURNS:
            message = f"{_MOST_TURNS:,} turns of the loop at {self._now:g} s, and time stands still: a task spins"
            raise TimeLimit(message + self.where())

    def idle(self) -> None:
        """Jump to the next timer, because no task is ready."""
        self.jump(self.next_timer())

    def jump(self, moment: float) -> None:
        """Let time pass until `moment`. Infinity means that nothing more will happen."""
        if moment == math.inf:
            raise Deadlock(f"deadlock at {self._now:g} s: nothing is ready, and no timer runs" + self.where())
        if moment > self._limit:
            raise TimeLimit(f"not finished after {self._limit:g} s" + self.where())
        self._now = max(self._now, moment)
        self._turns = 0

    def next_timer(self) -> float:
        """Return the time of the first timer, or infinity if there is none."""
        while self._scheduled and self._scheduled[0].cancelled():
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False
        return self._scheduled[0].when() if self._scheduled else math.inf

    def close(self) -> None:
        self._selector = None
        super().close()

    def where(self) -> str:
        """Return a line for each task that waits, and for each that has failed."""
        lines = [f"  {self._name(task)} waits{_line_of(task)}" for task in self._created(done=False)]
        for task in self._created(done=True):
            if not task.cancelled() and (error := task.exception()) is not None:
                lines.append(f"  {self._name(task)} has ended with {type(error).__name__}: {error}")
        return "".join(f"\n{line}" for line in lines[:12]) + ("\n  …" if len(lines) > 12 else "")

    def _name(self, task: asyncio.Task[Any]) -> str:
        """Return the name that it was given, or its number here. Asyncio's own numbers go on from loop to loop."""
        name = task.get_name()
        return f"task {self._numbers[task]}" if name == "None" or re.fullmatch(r"Task-\d+", name) else name

    def _created(self, *, done: bool) -> list[asyncio.Task[Any]]:
        """Return the tasks that have ended, or those that have not, the oldest first."""
        return sorted((task for task in self._numbers if task.done() == done), key=self._numbers.__getitem__)

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing, because the operating system has no events here."""

    def _write_to_self(self) -> None:
        """Do nothing, because nobody sleeps in `select` and has to be woken up."""


def run(main: Callable[..., Awaitable[Any]], *args: Any, seconds: float = 3600.0, **options: Any) -> Any:
    """Return the result of `await main(*args, **options)` in a new loop in virtual time, and cancel remaining tasks.

    It also works where another loop is running, as one is in a notebook.

    Args:
        main: an asynchronous function.
        seconds: the limit of virtual time.

    Raises:
        Deadlock: the message names the tasks that wait, with the line.
        TimeLimit: after `seconds`, or when a task spins without letting time pass.
    """
    return run_on(VirtualTimeLoop(seconds), main, *args, **options)


def run_on(loop: VirtualTimeLoop, main: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
    """Do the same as `run`, on the given new loop, and close the loop."""
    with alone():
        try:
            return loop.run_until_complete(_awaited(main, args, options))
        finally:
            try:
                cancel_all(loop)
            finally:
                loop.close()


@contextmanager
def alone() -> Iterator[None]:
    """Let this thread run another loop meanwhile, if one of its tasks runs now. From Python 3.14 on a thread has one
    current task for all loops, so that task is set aside as well."""
    outer = events._get_running_loop()
    task = asyncio.current_task(outer) if outer else None
    if outer and task:
        tasks._leave_task(outer, task)
    events._set_running_loop(None)
    try:
        yield
    finally:
        events._set_running_loop(outer)
        if outer and task:
            tasks._enter_task(outer, task)


def busy(seconds: float) -> None:
    """Compute for `seconds` without giving control back to the loop, as a call of a model would.

    In an executor's thread this takes the thread's time and leaves the loop free. Raises RuntimeError outside of `run`.
    """
    _loop().busy(seconds)


def now() -> float:
    """Return the seconds of virtual time since `run` began."""
    return _loop().time()


def _loop() -> VirtualTimeLoop:
    loop = events._get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("there is no virtual time here: call this in a program that `run(main)` executes")
    return loop


async def _awaited(main: Callable[..., Awaitable[Any]], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return await main(*args, **options)


def _remember(loop: Any, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    loop._tasks += 1
    task = asyncio.Task(coroutine, loop=loop, **options)
    loop._numbers[task] = loop._tasks
    return task


def _settle(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def cancel_all(loop: VirtualTimeLoop) -> None:
    """Cancel all tasks as `asyncio.run` does, but leave a task behind if it refuses to end."""
    loop.is_ending = True
    loop._limit = math.inf
    tasks = loop._created(done=False)
    for task in tasks:
        task.cancel()
    ending = asyncio.gather(*tasks, return_exceptions=True) if tasks else None
    try:
        if ending is not None:
            loop.run_until_complete(ending)
        loop.run_until_complete(loop.shutdown_asyncgens())
    except (Deadlock, TimeLimit):
        for task in loop._created(done=False):
            task._log_destroy_pending = False  # type: ignore[attr-defined]


def _line_of(task: "asyncio.Task[Any]") -> str:
    """Return the innermost line at which the task waits, without lines of asyncio and of this package."""
    location = ""
    for code, line in _chain(task.get_coro()):
        if code.co_filename.startswith((asyncio.__path__[0], _HERE)):
            continue
        text = linecache.getline(code.co_filename, line).strip()
        location = f" in {code.co_name}, line {line}" + (f": {text}" if text else "")
    return location


def _chain(coroutine: Any) -> Iterator[tuple[CodeType, int]]:
    """Yield the code and line of a coroutine, and of those that it awaits."""
    for _ in range(100):
        frame: FrameType | None = None
        for kind in ("cr", "ag", "gi"):
            frame = frame or getattr(coroutine, f"{kind}_frame", None)
        if frame is not None:
            yield frame.f_code, frame.f_lineno
        awaited = [getattr(coroutine, name, None) for name in ("cr_await", "ag_await", "gi_yieldfrom")]
        coroutine = next((awaitable for awaitable in awaited if awaitable is not None), None)
        if coroutine is None:
            return
