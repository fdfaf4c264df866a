"""The grader's end of the wall: requests to one student's process, and checks of its answers."""

from __future__ import annotations

import builtins
import dataclasses
import enum
import errno
import io
import math
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from threeloops.lab.checking import wall

from threeloops_grader.transport.link import FrameLink, LinkDead, WallError
from threeloops_grader.transport.tensors import is_module
from threeloops_grader.transport.wire import decode, encode
from threeloops_grader.wall.messages import (
    ErrorReply,
    Message,
    Reply,
    StudentError,
    Tracked,
    from_loaded,
    make_exception,
    plain,
    quoting,
    restore,
    walk,
)
from threeloops_grader.wall.pickling import Pickler
from threeloops_grader.wall.proxy import Proxy
from threeloops_grader.witness.functions import Function, Functions

if TYPE_CHECKING:
    import torch

    from threeloops_grader.wall.replays import Replays
    from threeloops_grader.witness.folders import Folders
    from threeloops_grader.witness.ranks import ConfinedRanks

__all__ = ["Wall"]

_FREE_BATCH = 256
_FREE_AT_ONCE = 100_000
_MAX_CLASSES = 16
_MAX_MESSAGE = 4000
_MAX_PRINTED = 200_000
_MAX_TAPE = 4096


class Wall:
    """The connection to one student's process, and to the monitor that watches it: `meter`."""

    def __init__(self, link: FrameLink, main: types.ModuleType, meter: FrameLink) -> None:
        self.link = link
        self.main = main
        self._meter = meter
        self.setup_names: set[str] = set()
        self.garbage: list[int] = []
        self.calls = 0
        """How often the test has called or changed something of the student's."""
        self.callbacks: list[Callable[..., Any]] = []
        self.printed = ""
        self.seed: int | None = None
        self.answer = ""
        self.replays: Replays | None = None
        self.functions: Functions
        self.folders: Folders
        self.words: list[str] = []
        """The error messages of ranks in this cell."""
        self._message = Message()
        self._nested = 0

    def call(self, target: dict[str, Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        message = self.pack([list(args), dict(kwargs)])
        self.calls += 1
        try:
            return self.request({"op": "call", **target, **message.tree}, message)
        finally:
            if not self._nested:
                self.callbacks.clear()

    def name_of(self, value: Any) -> str:
        return value.__name__ if type(value) is Proxy else "the call"

    def call_library(self, name: tuple[str, str], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self.call({"library": list(name)}, args, kwargs)

    def is_of_setup(self, name: str) -> bool:
        """Return whether a setup cell defines this name, so that it exists on the student's side as well."""
        return name in self.setup_names

    def note_case(self, error: BaseException, title: str, lines: list[str]) -> None:
        """Note the title of the check that an error ended, and where: the calls and lines of the test and of the
        student's cells."""
        error.__case__ = title, lines  # type: ignore[attr-defined]

    def offer(self, function: Callable[..., Any], *, waits: bool) -> Function:
        """Let any thread of the student's code call a function of the test, until the function is withdrawn."""
        self.folders.receive()  # the folder is the first message on the socket of the calls
        return self.functions.offer(function, waits=waits)

    def replay(self, tree: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Have the kernels of the submitted cell, `answer`, executed out of reach of the student's processes."""
        if self.replays is None:
            raise WallError("this lab replays kernels although none of its test cells names replay: release it again")
        return self.replays.ask(tree, buffers, self.seconds_left())

    @contextmanager
    def ranks(self, size: int, program: bytes, seconds: float) -> Iterator[ConfinedRanks]:
        """Have the monitor run a pickled program on this many ranks, each in a sandbox of its own, and kill them in the
        end."""
        from threeloops_grader.witness.ranks import ConfinedRanks  # imports torch

        self._meter.deadline = self.link.deadline
        ranks = ConfinedRanks(size, program, min(seconds, self.seconds_left()), self._meter, self._ask_for_ranks)
        try:
            yield ranks
        finally:
            self._meter.deadline = None  # the time may be over, and the monitor ends ranks at once
            ranks.close()

    def _ask_for_ranks(self, op: str, **more: int) -> dict[str, Any]:
        return self._ask_monitor(op, **more)[0]

    def result(self, data: memoryview) -> Any:
        """Decode the result of a rank."""
        from threeloops_grader.witness.ranks import result_of

        return result_of(data, self.decode_record)

    def memory_at(self, address: int, size: int) -> bytes | None:
        """Read the memory of the student's process at an address, from outside. Return None if it has fewer bytes.

        Raises OSError if this machine does not let the monitor read it.
        """
        self._meter.deadline = self.link.deadline
        tree, buffers = self._ask_monitor("read", address=address, size=size)
        if "refused" in tree:
            raise OSError(errno.EIO, f"the memory of a submission cannot be read ({tree['refused']})")
        return bytes(buffers[0]) if buffers and len(buffers[0]) == size else None

    def _ask_monitor(self, op: str, **more: int) -> tuple[dict[str, Any], list[bytearray]]:
        self._meter.send({"op": op, **more})
        return self._meter.receive()

    def note_words(self, error: BaseException) -> None:
        """Note that the error repeats words of the student's side. They stay noted if a test keeps the text and raises
        another error."""
        self.words.append(str(error))
        quoting(str(error), error)

    def seconds_left(self) -> float:
        """Return how long the cell may still take."""
        return math.inf if self.link.deadline is None else max(0.1, self.link.deadline - time.monotonic())

    def pack(self, value: Any) -> Message:
        """Encode a value for the student. By-value objects share one pickle, so that shared references stay shared."""
        self._message = message = Message()
        message.tree["value"] = encode(value, message.buffers, self)
        if message.by_value:
            file = io.BytesIO()
            Pickler(file, self.main, self.setup_names).dump(message.by_value)
            message.tree["pickle"] = len(message.buffers)
            message.buffers.append(file.getvalue())
        return message

    def request(self, head: dict[str, Any], message: Message | None = None) -> Any:
        """Send one question and return its answer. Callbacks into the test are served in between.

        Raises:
            Exception: the student's code raised it, here as its nearest builtin, torch, library or setup-defined class.
            WallError: the answer is not a plain value. LinkDead: there is none.
        """
        message = message or Message()
        if self.link.deadline is not None and time.monotonic() > self.link.deadline:
            self.link.dead = self.link.dead or "it used up its time"
            raise LinkDead(self.link.dead)
        if len(self.garbage) > _FREE_BATCH:
            dropped = self.garbage[:_FREE_AT_ONCE]
            self.garbage = self.garbage[_FREE_AT_ONCE:]
            self.request({"op": "free", "handles": dropped})
        if self.seed is not None:
            head["seed"] = self.seed
            self.seed = None
        self.link.send(head, message.buffers)
        while True:
            tree, buffers = self.link.receive()
            try:
                reply = msgspec.convert(tree, Reply)
            except ValueError as error:  # msgspec's own, or a UnicodeEncodeError for half a character in a wrong place
                raise quoting(str(error), WallError(f"a malformed answer came back ({error})")) from None
            self.printed = (self.printed + reply.printed)[:_MAX_PRINTED]
            if reply.callback is None:
                break
            self._serve_callback(reply.callback, reply.value, buffers)
        if reply.error is not None:
            raised = self._exception(reply.error)
            raise quoting(str(raised), raised)
        return self._accept(reply, buffers, message)

    def _serve_callback(self, number: int, value: Any, buffers: list[bytearray]) -> None:
        self._nested += 1
        try:
            if not 0 <= number < len(self.callbacks):
                raise WallError("a callback came back that no test gave away")
            args, kwargs = plain(decode(value, buffers, self))
            answer = self.pack(self.callbacks[number](*args, **kwargs))
            self.link.send(answer.tree, answer.buffers)
        except Exception as error:
            self.link.send({"error": [type(error).__name__, str(error)]})
        finally:
            self._nested -= 1

    def _accept(self, reply: Reply, buffers: list[bytearray], message: Message) -> Any:
        """Return the value of a reply, with gradients attached and in-place arguments restored."""
        value = decode(reply.value, buffers, self)
        try:
            leaf_grads = [decode(g, buffers, self) for g in reply.leaf_grads]
            tracked: list[Tracked] = []
            walk(value, tracked.append)
            if tracked:
                from threeloops_grader.wall.gradients import attached  # imports torch

                value = attached(self, value, reply.tape, leaf_grads, message.leaves)
            for original, changed in zip(message.in_place, reply.in_place, strict=True):
                restore(original, plain(decode(changed, buffers, self)))
        except Exception as error:
            raise quoting(
                str(error), WallError(f"a malformed answer came back ({type(error).__name__}: {error})")
            ) from None
        return value

    def _exception(self, error: ErrorReply) -> BaseException:
        """Return the student's exception as the nearest class that exists here, never as a class of the student's."""
        message = error.message[:_MAX_MESSAGE]
        names = error.classes[:_MAX_CLASSES]
        if f"{WallError.__module__}.{WallError.__qualname__}" in names:
            return WallError(message)
        for name in names:
            module, _, attribute = name.rpartition(".")
            kind = self._exception_class(module, attribute)
            if kind is not None:
                made = make_exception(kind, message)
                if made is not None:
                    made.further_frames = error.further_frames  # type: ignore[attr-defined]
                    return made
        unknown = StudentError(f"{names[0].rpartition('.')[2][:80] if names else 'error'}: {message}")
        unknown.further_frames = error.further_frames
        return unknown

    def _exception_class(self, module: str, name: str) -> type[Exception] | None:
        if module == "builtins":
            class_ = vars(builtins).get(name)
        elif module == "__main__":
            class_ = self.main.__dict__.get(name) if name in self.setup_names else None
        elif module.split(".")[0] in ("threeloops", "torch", "numpy"):
            class_ = from_loaded(module, name)
        else:
            class_ = None
        is_usable = isinstance(class_, type) and issubclass(class_, Exception) and class_ is not Exception
        return class_ if is_usable else None

    def encode_tensor(self, tensor: torch.Tensor) -> int | None:
        if not tensor.requires_grad:
            return None
        self._message.leaves.append(tensor)
        return len(self._message.leaves) - 1

    def encode_record(self, value: Any) -> bool:
        return False

    def encode_object(self, value: Any, _: Callable[[Any], Any]) -> Any:
        if type(value) is Proxy:
            return {"h": value._handle}
        message = self._message
        if isinstance(value, Function):
            return {"function": value.number}
        if isinstance(value, wall.InOut):
            message.in_place.append(value.value)
            return {"inout": encode(value.value, message.buffers, self)}
        if isinstance(value, wall.CalledBack) or self._is_callback(value):
            self.callbacks.append(value.value if isinstance(value, wall.CalledBack) else value)
            return {"callback": len(self.callbacks) - 1}
        if isinstance(value, wall.ByValue):
            value = value.value
        leaves = []
        if is_module(value):
            for parameter in value.parameters():
                if parameter.requires_grad:
                    leaves.append(len(message.leaves))
                    message.leaves.append(parameter)
        message.by_value.append(value)
        return {"pickled": [len(message.by_value) - 1, leaves]}

    def _is_callback(self, value: Any) -> bool:
        """Return whether a value is a callback. Functions of a test stay here and are called back. Library functions
        and modules travel."""
        return (
            callable(value)
            and not isinstance(value, (type, wall.ByValue))
            and not is_module(value)
            and getattr(value, "__module__", None) == "__main__"
            and getattr(value, "__name__", "") not in self.setup_names
        )

    def decode_tensor(self, tensor: torch.Tensor, grad: Any) -> Any:
        if grad is None:
            return tensor
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise WallError("a malformed value came back (an integer tensor cannot require a gradient)")
        if grad == "leaf":
            return Tracked(tensor, None)
        if type(grad) is not int or not 0 <= grad < _MAX_TAPE:
            raise WallError("a malformed value came back (bad place in autograd)")
        return Tracked(tensor, grad)

    def decode_record(self, module: Any, name: Any, fields: Any) -> Any:
        """Return a dataclass, enum member or named tuple whose class exists here, filled without running student
        code."""
        if module == "__main__":
            kind = self.main.__dict__.get(name) if name in self.setup_names else None
        else:
            kind = from_loaded(module, name) if str(module).startswith("threeloops.") else None
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and type(fields) is str:
            return kind[fields]
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return kind._make(plain([v for _, v in fields]))  # type: ignore[attr-defined]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            expected = [f.name for f in dataclasses.fields(kind)]
            if [f for f, _ in fields] != expected:
                raise WallError(f"a malformed {name} came back: expected the fields {expected}")
            record = object.__new__(kind)
            for field, value in fields:
                object.__setattr__(record, field, plain(value))
            return record
        unknown = repr(str(name)[:80])
        raise quoting(unknown, WallError(f"a record of an unknown class came back: {unknown}"))

    def decode_object(self, tag: str, value: Any, inner: Callable[[Any], Any]) -> Any:
        if tag == "h":
            return Proxy(self, value)
        raise WallError("a malformed value came back (unknown tag)")
