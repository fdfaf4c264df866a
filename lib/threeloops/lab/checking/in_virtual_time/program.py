"""The functions that a test calls: `in_virtual_time` and `there`. In a notebook, both run in the same process."""

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
    """Return the result of `await program(*args, **options)` on a loop in virtual time (`event_loop.run`).

    Behind the wall, the program runs on the grader's side, and so its arguments, its clock and its notes stay there. If
    an argument belongs to the student, the program gets an object that stands for it. The program may

    - call the object or its methods, and set its attributes, which happens at once
    - await the result of such a call, or read it with `async for` if it is an asynchronous generator
    - pass plain data, and its own functions, coroutines and asynchronous generators. These keep running on the
      grader's side, and the student's code gets objects that behave like them.

    Args:
        program: an asynchronous function of a setup cell.
        seconds: the limit of virtual time.

    Raises:
        Deadlock, TimeLimit: see `event_loop.run`. The message names the lines at which the student's tasks wait.
        RuntimeError: the sandbox gave an impossible answer.
    """
    if wall.connection is None:
        return run(program, *args, seconds=seconds, **options)
    loop = LeadingLoop(wall.connection, seconds)
    with one_core() as core:
        loop.begin(core)
        try:
            return run_on(loop, program, *(_remote(loop, argument) for argument in args), **options)
        finally:
            loop.finish()


def there(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a setup cell in the process that has the student's objects, from a program in virtual time.

    Use this if the function needs the objects themselves, such as tasks. The sandbox could forge the result.
    """
    loop = events._get_running_loop()
    if not isinstance(loop, LeadingLoop):
        return function(*args)
    if not wall.connection.is_of_setup(function.__name__):
        raise TypeError(f"{function.__name__} is not of a setup cell: only functions of setup cells are on both sides")
    ask = loop.operate if inspect.iscoroutinefunction(function) else loop.call
    return ask(function, "", args, {})


def _remote(loop: LeadingLoop, value: Any) -> Any:
    return Remote(loop, value) if is_of_the_student(value) else value
