"""Functions by which a test cell says how its arguments and calls cross the wall.

A test cell runs unchanged in JupyterLab, next to the student's functions, and in a graded run, where those functions
live in another process. These functions handle this difference. In JupyterLab they only return or call what they get.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from threeloops.lab.course import lab_cells

__all__ = [
    "ByValue", "CalledBack", "InOut", "arguments_after", "by_value", "connection", "inout", "is_of_lab", "name_of",
    "offered", "resolve", "student_side", "there",
]  # fmt: skip

connection: Any = None
"""The grader's connection to the student's process, or None if the test runs beside the student's code."""


class InOut:
    """An argument that the student's function changes in place: sent, and copied back into the original."""

    def __init__(self, value: Any) -> None:
        self.value = value


class ByValue:
    """An argument that travels as a copy, code included."""

    def __init__(self, value: Any) -> None:
        self.value = value


class CalledBack:
    """A function of the library that the student's side may call back, like a function of a test cell."""

    def __init__(self, value: Callable[..., Any]) -> None:
        self.value = value


def inout(value: Any) -> Any:
    """Mark a tensor, array, list, dict or module that the student's function is to change in place."""
    return value if connection is None else InOut(value)


def by_value(value: Any) -> Any:
    """Mark a helper that the student's process is to run itself, not call back for.

    Its code and the globals that it uses become visible to the student, so it must not contain the answer.
    """
    return value if connection is None else ByValue(value)


@contextmanager
def offered(function: Callable[..., Any], *, waits: bool = False) -> Iterator[Any]:
    """Let any thread of the student's code call a function of the test, within the `with` block.

    The block gets an object that stands for the function, to pass to the student's functions. Arguments and results are
    plain data. Behind the wall, the grader answers calls in a thread. Set `waits` if a call may have to wait: then each
    call gets its own thread.
    """
    if connection is None:
        yield function
        return
    offer = connection.offer(function, waits=waits)
    try:
        yield offer
    finally:
        connection.functions.withdraw(offer)


def student_side(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a library function that must run where the student's objects live.

    For helpers of tests that need the objects themselves: a loop over a student's generator, an optimizer over a
    student's parameters, a captured print. Behind the wall the call is forwarded by module and name.
    """
    name = (function.__module__, function.__qualname__)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if connection is None else connection.call_library(name, args, kwargs)

    return call


@student_side
def arguments_after(function: Callable[..., Any], *args: Any) -> list[Any]:
    """The arguments as `function(*args)` leaves them.

    For records such as a dataclass of tensors, which travel as copies and cannot be marked with `inout`.
    """
    function(*args)
    return list(args)


@student_side
def there(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, called where the student's objects live. Use this for a function of a setup cell that
    needs the objects themselves. Behind the wall, the student's process could forge the result."""
    return function(*args)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a student's function for a message, without asking an object that could run its own code."""
    if type(function) is FunctionType:
        return function.__name__
    return "the call" if connection is None else connection.name_of(function)


def is_of_lab(name: str) -> bool:
    """Return whether a setup cell of the lab defines the function or class of this name."""
    if connection is not None:
        return bool(connection.is_of_setup(name))
    value = vars(sys.modules["__main__"]).get(name)
    functions = vars(value).values() if isinstance(value, type) else [value]
    return any(lab_cells.is_of_lab(f.__code__.co_filename) for f in functions if type(f) is FunctionType)


def resolve(module: str, qualname: str) -> Callable[..., Any]:
    """The library function behind a forwarded call. Runs on the student's side, at the grader's request."""
    target: Any = importlib.import_module(module)
    for part in qualname.split("."):
        target = getattr(target, part)
    return target
