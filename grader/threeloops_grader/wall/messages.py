"""Messages across the wall: encoded values, replies of the student's side, changes made in place, exceptions.

A student's exception is raised as the nearest class that exists on the grader's side, never as a class of the
student's.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import numpy as np
from threeloops.frames import Buffer
from threeloops.lab.checking.failure import Frame

from threeloops_grader.transport.link import WallError
from threeloops_grader.transport.tensors import is_module, is_tensor

if TYPE_CHECKING:
    import torch

__all__ = [
    "Asks",
    "ErrorReply",
    "Message",
    "Reply",
    "StudentError",
    "Tracked",
    "error_reply",
    "from_loaded",
    "make_exception",
    "plain",
    "quoting",
    "restore",
    "walk",
]

_MOST_FRAMES = 4
_MOST_OF_LINE = 300


class Asks(Protocol):
    """The parts of a connection that the proxies and gradients which came through it need."""

    garbage: list[int]
    calls: int

    def call(self, target: dict[str, Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any: ...

    def request(self, head: dict[str, Any], message: Message | None = None) -> Any: ...

    def pack(self, value: Any) -> Message: ...


@dataclass
class Message:
    """An encoded value, and the values that the answer refers to: tensors that want gradients, and arguments to
    restore."""

    tree: dict[str, Any] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    leaves: list[torch.Tensor] = field(default_factory=list)
    in_place: list[Any] = field(default_factory=list)
    by_value: list[Any] = field(default_factory=list)


@dataclass
class Tracked:
    """A tensor that came back with a place in the student's autograd graph: a result's index, or None for a leaf."""

    tensor: torch.Tensor
    index: int | None


class _FrameReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a cell that an exception has passed through, as `threeloops.lab.checking.failure.Frame`."""

    place: str
    line: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    text: str
    call: str = ""


class ErrorReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception: the names of its classes, its message and the lines that it has passed through, outermost first."""

    classes: list[str]
    message: str
    frames: list[_FrameReply] = []

    @property
    def further_frames(self) -> list[Frame]:
        """The frames, each on one line that fits on a card."""
        frames = self.frames[:1] + self.frames[1:][1 - _MOST_FRAMES :]
        return [Frame(_short(f.place), f.line, _short(f.text), _short(f.call)) for f in frames]


def error_reply(plain: Any) -> ErrorReply:
    """Return an exception from the plain data of the student's side. Raises WallError if it is malformed."""
    try:
        return msgspec.convert(plain, ErrorReply)
    except ValueError as error:
        raise quoting(str(error), WallError(f"a malformed answer came back ({error})")) from None


def _short(text: str) -> str:
    return " ".join(text.split())[:_MOST_OF_LINE]


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
    """An exception type that exists only on the student's side. Its message begins with the name of that type."""

    further_frames: Sequence[Frame] = ()


def from_loaded(module: Any, name: Any) -> Any:
    """Look up a name in a module that is loaded here. It does not use `getattr`, because some modules then import more
    of themselves."""
    loaded = sys.modules.get(module)
    return vars(loaded).get(name) if isinstance(loaded, types.ModuleType) else None


def make_exception(kind: type[Exception], message: str) -> Exception | None:
    """Make an exception of that class and text. Returns None if the class cannot be made from a text alone."""
    for make in (lambda: kind(message), lambda: kind.__new__(kind, message)):
        with suppress(Exception):
            made = make()
            if isinstance(made, kind) and str(made) is not None:  # str may need attributes that it lacks
                return made
    return None


def quoting(words: str, error: BaseException) -> BaseException:
    """Return the error, marked as one that repeats these words of the student's side, which may tell hidden inputs."""
    error.__student_words__ = words  # type: ignore[attr-defined]
    return error


def walk(value: Any, visit: Callable[[Tracked], Any]) -> Any:
    """Replace the tracked tensors in plain containers."""
    kind = type(value)
    if kind is Tracked:
        return visit(value)
    if kind in (list, tuple):
        return kind(walk(v, visit) for v in value)
    if kind is dict:
        return {k: walk(v, visit) for k, v in value.items()}
    return value


def plain(value: Any) -> Any:
    return walk(value, lambda t: t.tensor)


def restore(original: Any, changed: Any) -> None:
    """Copy an in-place change back into the test's own object."""
    if is_module(original):
        original.load_state_dict(changed["state"])
        for parameter, grad in zip(original.parameters(), changed["grads"], strict=True):
            parameter.grad = None if grad is None else grad.reshape(parameter.shape).to(parameter.dtype)
    elif is_tensor(original):
        import torch

        if changed.shape != original.shape or changed.dtype != original.dtype:
            raise ValueError("an in-place argument changed its shape or dtype")
        with torch.no_grad():
            original.copy_(changed)
    elif isinstance(original, np.ndarray):
        original[...] = changed
    elif isinstance(original, list):
        original[:] = changed
    elif isinstance(original, dict):
        original.clear()
        original.update(changed)
    else:
        raise TypeError(f"a {type(original).__name__} cannot be changed in place across the wall")
