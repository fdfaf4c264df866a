"""What crosses the wall: encoded values, replies of the student's side, and its exceptions.

A student's exception is raised as the nearest class that exists on the grader's side, never as a class of the
student's.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import torch
from threeloops.frames import Buffer

__all__ = ["Asks", "ErrorReply", "Message", "Reply", "StudentError", "from_loaded", "make_exception", "quoting"]


class Asks(Protocol):
    """What proxies and gradients need of the connection through which they came."""

    garbage: list[int]

    def call(self, target: dict[str, Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any: ...

    def request(self, head: dict[str, Any], message: Message | None = None) -> Any: ...

    def pack(self, value: Any) -> Message: ...


@dataclass
class Message:
    """An encoded value, and what the answer needs: tensors that want gradients, arguments to restore."""

    tree: dict[str, Any] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    leaves: list[torch.Tensor] = field(default_factory=list)
    in_place: list[Any] = field(default_factory=list)
    by_value: list[Any] = field(default_factory=list)


class ErrorReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception: the names of its classes, its message and the line that raised it."""

    classes: list[str]
    message: str
    where: str = ""


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that the student's side may say: an answer, an error, or the request to call back. Values are encoded."""

    value: Any = None
    printed: str = ""
    error: ErrorReply | None = None
    callback: int | None = None
    leaf_grads: list[Any] = []
    in_place: list[Any] = []
    tape: int | None = None


class StudentError(Exception):
    """An exception type that exists only on the student's side."""


def from_loaded(module: Any, name: Any) -> Any:
    """A name in a module that is loaded here. Not by `getattr`, with which some modules import more of themselves."""
    loaded = sys.modules.get(module)
    return vars(loaded).get(name) if isinstance(loaded, types.ModuleType) else None


def make_exception(kind: type[Exception], message: str) -> Exception | None:
    """An exception of that class and text; None where the class cannot be made from a text alone."""
    for make in (lambda: kind(message), lambda: kind.__new__(kind, message)):
        with suppress(Exception):
            made = make()
            if isinstance(made, kind) and str(made) is not None:  # str may need attributes that it lacks
                return made
    return None


def quoting(words: str, error: BaseException) -> BaseException:
    """The error, marked as one that repeats these words of the student's side, which may tell hidden inputs."""
    error.__student_words__ = words  # type: ignore[attr-defined]
    return error
