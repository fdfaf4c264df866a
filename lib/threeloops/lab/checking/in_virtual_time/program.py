"""What a test calls: `in_virtual_time` and `there`. Both work in a notebook, too, where there is only one side."""

import inspect
from asyncio import events
from collections.abc import Awaitable, Callable
from typing import Any

from threeloops.lab.checking import wall
from threeloops.lab.checking.in_virtual_time.leading import LeadingLoop
from threeloops.lab.checking.in_virtual_time.remote import Remote, is_of_the_student
from threeloops.simulation.event_loop import run, run_on
from threeloops.simulation.one_core import one_core

__all__ = ["in_virtual_time", "there"]


def in_virtual_time(program: Callable[..., Awaitable[Any]], *args: Any, seconds: float = 3600.0, **options: Any) -> Any:
    """Return what `await program(*args, **options)` returns, on a loop in virtual time (`event_loop.run`).

    Behind the wall, the program runs on the grader's side, so its arguments, its clock and whatever it notes stay
    there. An argument that is the student's is an object of the sandbox. The program may

    - call it, call its methods, and set its attributes. That happens at once;
    - await what such a call returns, and read it with `async for`, if it is an asynchronous generator;
    - hand over plain data, and its own functions, coroutines and asynchronous generators. These keep running on the
      grader's side, and the student's code gets objects that behave like them.

    Args:
        program: an asynchronous function of a setup cell.
        seconds: the limit of virtual time.

    Raises:
        Deadlock, TimeLimit: as `event_loop.run`, with the lines at which the student's tasks wait.
        RuntimeError: the sandbox gave an answer that no loop gives.
    """
    if wall.connection is None:
        return run(program, *args, seconds=seconds, **options)
    loop = LeadingLoop(wall.connection, seconds)
    with one_core() as core:
        loop.begin(core)
        try:
            return run_on(loop, program, *(_remote(loop, each) for each in args), **options)
        finally:
            loop.finish()


def there(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a setup cell where the student's objects are, from a program that runs in virtual time.

    For what needs the objects themselves, such as tasks. What it returns is only a claim of the sandbox.
    """
    loop = events._get_running_loop()
    if not isinstance(loop, LeadingLoop):
        return function(*args)
    if not wall.connection.is_of_setup(function):
        raise TypeError(f"{function.__name__} is not of a setup cell: only functions of setup cells are on both sides")
    ask = loop.operate if inspect.iscoroutinefunction(function) else loop.call
    return ask(function, "", args, {})


def _remote(loop: LeadingLoop, value: Any) -> Any:
    return Remote(loop, value) if is_of_the_student(value) else value
