"""Objects that stand for the grader's functions, coroutines and generators in the student's process (`following`)."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol

__all__ = ["is_data", "reason_of", "stand_in"]

_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict)


class _Loop(Protocol):
    asked: list[list[Any]]
    is_ending: bool

    def call_grader(self, export: int, *args: Any, **kwargs: Any) -> Any: ...

    def question(self, export: int, what: str) -> "tuple[int, asyncio.Future[Any]]": ...


def is_data(value: Any) -> bool:
    """Tell whether a value crosses the wall as a copy: plain data, or an array or tensor."""
    return isinstance(value, _PLAIN) or type(value).__module__.partition(".")[0] in ("numpy", "torch")


def reason_of(error: asyncio.CancelledError) -> str | None:
    """Return the message of a cancellation, if it has one."""
    return str(error.args[0]) if error.args else None


def stand_in(loop: _Loop, kind: str, value: Any) -> Any:
    """Return an argument from the grader: plain data, an object of this side, or a stand-in for one of the grader's."""
    match kind:
        case "function":
            return _Function(loop, value)
        case "coroutine":
            return _coroutine(loop, value)
        case "generator":
            return _generator(loop, value)
        case _:
            return value


class _Function:
    """Stands for a function of the grader's."""

    def __init__(self, loop: _Loop, export: int) -> None:
        self._loop = loop
        self._export = export

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [_listed(argument) for argument in args]
        return self._loop.call_grader(self._export, *given, **{name: _listed(kwargs[name]) for name in kwargs})


def _listed(value: Any) -> Any:
    """Turn a view or an iterator into a list, because only data can cross the wall."""
    return list(value) if isinstance(value, Iterable) and not is_data(value) else value


async def _coroutine(loop: _Loop, export: int) -> Any:
    """Stand for a coroutine of the grader's. Cancelling this coroutine cancels that one."""
    kind, value = await _answer(loop, export, "run")
    return _result(kind, value)


async def _generator(loop: _Loop, export: int) -> AsyncIterator[Any]:
    """Stand for an asynchronous generator of the grader's. Cancelling or closing it takes as long as it does there."""
    is_open = True
    try:
        while True:
            kind, value = await _answer(loop, export, "next")
            is_open = kind == "value"
            if kind == "ended":
                return
            yield _result(kind, value)
    finally:
        if is_open and not loop.is_ending:
            kind, value = await _answer(loop, export, "close")
            _result(kind, value)


async def _answer(loop: _Loop, export: int, what: str) -> tuple[str, Any]:
    """Ask the grader for something that takes time. A cancellation is passed on, and what it does there is awaited."""
    question, future = loop.question(export, what)
    while True:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.done() or loop.is_ending:
                raise
            loop.asked.append(["stop", question, reason_of(error)])


def _result(kind: str, value: Any) -> Any:
    if kind == "raised":
        raise value
    if kind == "cancelled":
        raise asyncio.CancelledError(*([] if value is None else [value]))
    return value
