"""The student's exceptions as the nearest class that exists on the grader's side, never a class of the student's."""

from __future__ import annotations

import sys
import types
from contextlib import suppress
from typing import Any


class StudentError(Exception):
    """An exception type that exists only on the student's side."""


def from_loaded(module: Any, name: Any) -> Any:
    """A name of a module that is loaded here; without `getattr`, by which some modules import more of themselves."""
    loaded = sys.modules.get(module)
    return vars(loaded).get(name) if isinstance(loaded, types.ModuleType) else None


def make_exception(kind: type[Exception], message: str) -> Exception | None:
    """An exception of that class and text; None where the class cannot be made from a text alone."""
    for make in (lambda: kind(message), lambda: kind.__new__(kind, message)):
        with suppress(Exception):
            made = make()
            if isinstance(made, kind) and str(made) is not None:  # a class may word itself by attributes it lacks now
                return made
    return None
