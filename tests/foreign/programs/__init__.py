"""Small programs in the shapes of public distributed code, and the registry that says what each one does.

A program is a function that every rank calls. Its docstring is the idea that it stands for. It returns plain values, so
that those of two backends can be compared.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from programs.costs import Cost

__all__ = ["Program", "every_program", "program"]


@dataclass(frozen=True)
class Program:
    """One program and what is known about it."""

    function: Callable[[], Any]
    ranks: int
    cost: Cost | None = None
    """Virtual seconds until the last rank returns, and bytes that the ranks send, if formulas give them."""
    rounding: str = ""
    """Why the values may differ in their last digits. Without a reason they must be equal to the bit."""
    refused: str = ""
    """A pattern of the error with which the virtual cluster refuses the program, and gloo too."""
    gloo_runs: bool = False
    """Whether gloo runs a program that the virtual cluster refuses."""
    since: str = "2.13"
    """The first version of torch with which it was run."""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def area(self) -> str:
        """The module that it stands in."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def idea(self) -> str:
        return " ".join((self.function.__doc__ or "").split())


_programs: list[Program] = []


def program(ranks: int = 2, **known: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function as a program; the other fields of `Program` are given by name."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        _programs.append(Program(function, ranks, **known))
        return function

    return register


def every_program() -> list[Program]:
    """All programs, area by area, in the order in which they are written."""
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return sorted(_programs, key=lambda one: one.area)
