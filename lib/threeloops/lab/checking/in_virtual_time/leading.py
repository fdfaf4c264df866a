"""The grader's loop. It keeps the time for two processes: its own program, and the student's tasks in the sandbox.

The loop records each request from the other side at the time when it arrives. When no task is ready on this side, the
loop does the first of these that applies:

- handle the next request of the student's tasks
- let the student's tasks continue at the current time, if they have something to do
- jump to the next timer of either side.

So the student's side learns of an event when it happens. It can neither move the clock nor choose when its actions
happen. `simulation/following.py` is the other end.
"""

import asyncio
import inspect
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from threeloops.lab.checking import wall
from threeloops.lab.checking.in_virtual_time.remote import Remote, is_of_the_student, made
from threeloops.simulation import following
from threeloops.simulation.event_loop import VirtualTimeLoop
from threeloops.simulation.stand_ins import reason_of

__all__ = ["LeadingLoop"]

_FOLLOWING = "threeloops.simulation.following"
_ASKED = {"done": (int, str), "ask": (int, int, str), "stop": (int,)}
"""The kinds of requests from the sandbox, each with the types of its first fields."""


class LeadingLoop(VirtualTimeLoop):
    """A loop in virtual time whose program uses objects in the sandbox."""

    def __init__(self, connection: Any, limit: float) -> None:
        super().__init__(limit)
        self._wall = connection
        self._told: list[list[Any]] = []
        self._asked: deque[list[Any]] = deque()
        self._exports: list[Any] = []
        self._operations: dict[int, asyncio.Future[Any]] = {}
        self._started = self._lanes = 0
        self._questions: dict[int, asyncio.Task[Any]] = {}
        self._other_timer = math.inf
        self._other_is_ready = False
        # An error that nobody awaits is the student's, so it is not printed.
        self.set_exception_handler(lambda *_: None)

    def where(self) -> str:
        """Return nothing. Failed tasks here may quote the student's code, and `following` names the waiting tasks."""
        return ""

    def begin(self, core: int) -> None:
        """Start the loop in the sandbox, which then runs on `core`."""
        self.ask("start", core)

    def finish(self) -> None:
        """End the loop in the sandbox, and close the coroutines that never ran."""
        for exported in self._exports:
            if inspect.iscoroutine(exported):
                exported.close()
        self.ask("end")

    def ask(self, name: str, *args: Any) -> Any:
        """Call a function of `following` in the sandbox."""
        return self._wall.call_library((_FOLLOWING, name), args, {})

    def idle(self) -> None:
        if self.is_ending:
            super().idle()
        elif self._asked:
            self.count_a_turn()
            self._hear(*self._asked.popleft())
        elif self._told or self._other_is_ready or self._other_timer <= self._now:
            self.count_a_turn()
            self._take(self._exchange("go_on"))
        else:
            self._jump_or_stop(min(self.next_timer(), self._other_timer))

    def _jump_or_stop(self, moment: float) -> None:
        if moment == math.inf:
            self.ask("raise_deadlock", self._now)
        elif moment > self._limit:
            self.ask("raise_time_limit", self._limit)
        self.jump(moment)  # raises an error if the sandbox did not

    def call(self, target: Any, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method of the student's at once, or the target itself if `method` is empty."""
        self._other_is_ready = True  # even if the call raises an error
        given, named = self._given(args, kwargs)
        answer = self._exchange("call_now", self._there(target), method, given, named)
        if type(answer) is not list or len(answer) != 6:
            raise _malformed()
        kind, value, names, *rest = answer
        self._take(rest)
        return made(self, kind, value, names)

    async def operate(
        self, target: Any, method: str, args: Sequence[Any], kwargs: dict[str, Any], lane: int | None = None
    ) -> Any:
        """Await the result of a method of the student's. A cancellation is passed on to the student's code, and then
        this waits until that code has ended."""
        self._started = number = self._started + 1
        self._operations[number] = future = self.create_future()
        lanes = [lane, *(argument.lane for argument in args if isinstance(argument, Remote))]
        lane = next((lane for lane in lanes if lane is not None), None)
        self._told.append(["begin", number, lane, self._there(target), method, *self._given(args, kwargs)])
        while True:
            try:
                kind, value = await asyncio.shield(future)
                break
            except asyncio.CancelledError as error:
                if future.done() or self.is_ending:
                    raise
                self._told.append(["cancel", number, reason_of(error)])
        match kind:
            case "value":
                return value
            case "ended":
                raise StopAsyncIteration
            case "cancelled":
                raise asyncio.CancelledError
            case "raised":
                self.ask("raise_error", value)
        raise _malformed()

    def new_lane(self) -> int:
        """Return a number for the task in which all operations on one stream run."""
        self._lanes += 1
        return self._lanes

    def _exchange(self, name: str, *args: Any) -> Any:
        told = self._told
        self._told = []
        return self.ask(name, wall.CalledBack(self._serve), self._now, told, *args)

    def _take(self, answer: Any) -> None:
        """Record an answer of the sandbox: its requests, its next timer, and whether one of its tasks is ready."""
        if type(answer) is not list or len(answer) != 3:
            raise _malformed()
        asked, timer, is_ready = answer
        good = type(asked) is list and all(map(_is_asked, asked)) and type(is_ready) is bool
        if not good or (timer is not None and (type(timer) not in (int, float) or math.isnan(timer))):
            raise _malformed()
        self._asked.extend(asked)
        self._other_timer = math.inf if timer is None else timer
        self._other_is_ready = is_ready

    def _hear(self, kind: str, number: int, *rest: Any) -> None:
        """Act on one request of the sandbox."""
        match kind, rest:
            case "done", (outcome, value) if number in self._operations:
                self._operations.pop(number).set_result((outcome, value))
            case "ask", (export, what) if number not in self._questions:
                self._questions[number] = self.create_task(self._answer(number, self._work(export, what)))
            case "stop", (reason,):
                if number in self._questions:
                    self._questions[number].cancel(None if reason is None else str(reason))
            case _:
                raise _malformed()

    def _export(self, number: int) -> Any:
        if not 0 <= number < len(self._exports):
            raise _malformed()
        return self._exports[number]

    def _work(self, export: int, what: str) -> Coroutine[Any, Any, Any]:
        value = self._export(export)
        if what == "run" and inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            return value
        if what == "next" and inspect.isasyncgen(value):
            return _next(value)
        if what == "close" and inspect.isasyncgen(value):
            return _close(value)
        raise _malformed()

    async def _answer(self, question: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            outcome = ["value", await work]
        except asyncio.CancelledError as error:
            outcome = ["cancelled", reason_of(error)]
        except StopAsyncIteration:
            outcome = ["ended", None]
        except Exception as error:
            outcome = ["raised", error]
        del self._questions[question]
        self._told.append(["answer", question, *outcome])

    def _serve(self, export: int, is_in_a_thread: bool, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Call a function for the sandbox. It takes up the time of this loop, or of a thread with its own clock."""
        function = self.busy if export == following.BUSY else self._export(export)
        if not is_in_a_thread:
            return [*_called(function, args, kwargs), self._now]
        with self.own_clock() as thread:
            return [*_called(function, args, kwargs), thread.now]

    def _given(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        return [self._argument(argument) for argument in args], {name: self._argument(kwargs[name]) for name in kwargs}

    def _argument(self, value: Any) -> list[Any]:
        """Encode an argument. Data and objects of the sandbox stay as they are, and other objects become a number."""
        if isinstance(value, Remote) or is_of_the_student(value) or isinstance(value, type):
            return ["value", self._there(value)]
        for kind, is_one in (
            ("coroutine", inspect.iscoroutine),
            ("generator", inspect.isasyncgen),
            ("function", callable),
        ):
            if is_one(value):
                self._exports.append(value)
                return [kind, len(self._exports) - 1]
        return ["value", value]

    def _there(self, value: Any) -> Any:
        return value.proxy if isinstance(value, Remote) else value


def _is_asked(asked: Any) -> bool:
    if type(asked) is not list or not asked or type(asked[0]) is not str or asked[0] not in _ASKED:
        return False
    kinds = _ASKED[asked[0]]
    return [type(field) for field in asked[1 : 1 + len(kinds)]] == list(kinds)


def _called(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    try:
        return ["value", function(*args, **kwargs)]
    except Exception as error:
        return ["raised", error]


async def _next(generator: Any) -> Any:
    return await anext(generator)


async def _close(generator: Any) -> None:
    await generator.aclose()


def _malformed() -> RuntimeError:
    return RuntimeError("the loop in the sandbox of this submission gave a malformed answer")
