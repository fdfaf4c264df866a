"""The grader's end of the wall: proxies for the student's objects, and the calls behind them.

A test cell that says `softmax(x)` holds a `Proxy`; calling it sends the arguments across and returns plain data. What
is not plain data comes back as another proxy, which can be called and indexed but not compared, converted or trusted.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import io
import sys
import time
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import cloudpickle
import numpy as np
import torch
from threeloops.lab import wall

from grader.link import Buffer, Link, LinkDead, WallError
from grader.wall.student import MAIN_TWIN
from grader.wire import decode, encode

_FREE_BATCH, _FREE_AT_ONCE = 256, 100_000
_HANDLE_BITS = 48
_MAX_CLASSES, _MAX_MESSAGE, _MAX_WHERE = 16, 4000, 200
_MAX_PRINTED = 200_000
_MAX_TAPE = 4096


class StudentError(Exception):
    """An exception type that exists only on the student's side."""


class Proxy:
    """An object of the student's, seen from here. It works where it is called; it is never data."""

    __slots__ = ("_handle", "_kind", "_wall", "__name__")

    def __init__(self, connection: Wall, handle: Any) -> None:
        if type(handle) is not list or len(handle) != 3 or type(handle[0]) is not int or handle[0] >> _HANDLE_BITS:
            raise WallError("a malformed value came back (bad handle)")
        object.__setattr__(self, "_wall", connection)
        object.__setattr__(self, "_handle", handle[0])
        object.__setattr__(self, "_kind", str(handle[1]))
        object.__setattr__(self, "__name__", str(handle[2])[:80])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wall.call({"handle": self._handle}, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name}: private names do not cross the wall")
        return self._wall.request({"op": "attribute", "handle": self._handle, "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        message = self._wall.pack(value)
        self._wall.request({"op": "set", "handle": self._handle, "name": name, **message.tree}, message)

    def __iter__(self) -> Proxy:
        if self._kind != "iterator":
            raise TypeError(f"the student's {self.__name__!r} object is no iterator, and only iterators cross the wall")
        return self

    def __del__(self) -> None:
        with suppress(AttributeError):
            self._wall.garbage.append(self._handle)

    def __repr__(self) -> str:
        return f"<the student's {self.__name__}>"

    def __mro_entries__(self, bases: Any) -> Any:
        raise TypeError("a test cannot subclass the student's class: it lives behind the wall")

    def _refuse(self, *_: Any) -> Any:
        raise WallError(
            f"expected plain data (numbers, strings, lists, arrays, tensors), got a {self.__name__!r} object, "
            "which cannot be compared or used as a value"
        )

    __hash__ = None  # type: ignore[assignment]


_REFUSED = (
    "eq ne lt le gt ge bool float int index complex bytes round trunc floor ceil fspath "
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow matmul rmatmul "
    "and rand or ror xor rxor lshift rlshift rshift rrshift neg pos abs invert "
    "array reduce reduce_ex"
)
for _name in _REFUSED.split():
    setattr(Proxy, f"__{_name}__", Proxy._refuse)


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Proxy, *args: Any) -> Any:
        return self._wall.call({"handle": self._handle, "method": name}, args, {})

    return method


for _name in ("__len__", "__getitem__", "__setitem__", "__next__", "__enter__", "__exit__", "__contains__"):
    setattr(Proxy, _name, _forwarded(_name))


@dataclasses.dataclass
class Message:
    """An encoded value, and what the answer needs: tensors that want gradients, arguments to restore."""

    tree: dict[str, Any] = dataclasses.field(default_factory=dict)
    buffers: list[Buffer] = dataclasses.field(default_factory=list)
    leaves: list[torch.Tensor] = dataclasses.field(default_factory=list)
    in_place: list[Any] = dataclasses.field(default_factory=list)
    by_value: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Tracked:
    """A tensor that came back with a place in the student's autograd graph: a result's index, or None for a leaf."""

    tensor: torch.Tensor
    index: int | None


class _Backward(torch.autograd.Function):
    """Results of a student's call, as differentiable here: backward is a request to the student's side."""

    @staticmethod
    def forward(ctx: Any, connection: Wall, tape: int, tracked: list[_Tracked], *leaves: torch.Tensor) -> Any:
        ctx.connection, ctx.tape, ctx.leaves = connection, tape, len(leaves)
        ctx.indices = [t.index for t in tracked]
        return tuple(t.tensor.clone() for t in tracked)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        by_index: list[Any] = [None] * (max(ctx.indices) + 1)
        for index, grad in zip(ctx.indices, grads, strict=True):
            by_index[index] = grad
        message = ctx.connection.pack(by_index)
        head = {"op": "backward", "tape": ctx.tape, "leaves": ctx.leaves, **message.tree}
        answer = ctx.connection.request(head, Message(buffers=message.buffers))
        if type(answer) is not list or len(answer) != ctx.leaves:
            raise WallError("a malformed gradient came back")
        return (None, None, None, *[g if isinstance(g, torch.Tensor) else None for g in answer])


class Wall:
    """The connection to one student's process."""

    def __init__(self, link: Link, main: types.ModuleType) -> None:
        self.link, self.main = link, main
        self.setup_names: set[str] = set()
        self.garbage: list[int] = []
        self.callbacks: list[Callable[..., Any]] = []
        self.printed = ""
        self.requests = 0
        self.seed: int | None = None
        self._message = Message()
        self._nested = 0

    def call(self, target: dict[str, Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        message = self.pack([list(args), dict(kwargs)])
        try:
            return self.request({"op": "call", **target, **message.tree}, message)
        finally:
            if not self._nested:
                self.callbacks.clear()

    def name_of(self, value: Any) -> str:
        return value.__name__ if type(value) is Proxy else "the call"

    def call_library(self, name: tuple[str, str], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self.call({"library": list(name)}, args, kwargs)

    def pack(self, value: Any) -> Message:
        """Encode a value for the student; all by-value objects share one pickle, so that what was tied stays tied."""
        self._message = message = Message()
        message.tree["value"] = encode(value, message.buffers, self)
        if message.by_value:
            file = io.BytesIO()
            _Pickler(file, self).dump(message.by_value)
            message.tree["pickle"] = len(message.buffers)
            message.buffers.append(file.getvalue())
        return message

    def request(self, head: dict[str, Any], message: Message | None = None) -> Any:
        """One question and its answer; callbacks into the test are served in between.

        Raises:
            Exception: what the student's code raised, as its nearest builtin, torch, library or setup-defined class.
            WallError: the answer is no plain value. LinkDead: there is none.
        """
        message = message or Message()
        self.requests += 1
        if self.link.deadline is not None and time.monotonic() > self.link.deadline:
            self.link.dead = self.link.dead or "it used up its time"
            raise LinkDead(self.link.dead)
        if len(self.garbage) > _FREE_BATCH:
            dropped, self.garbage = self.garbage[:_FREE_AT_ONCE], self.garbage[_FREE_AT_ONCE:]
            self.request({"op": "free", "handles": dropped})
        if self.seed is not None:
            head["seed"], self.seed = self.seed, None
        self.link.send(head, message.buffers)
        while True:
            reply, buffers = self.link.receive()
            self.printed = (self.printed + str(reply.get("printed", "")))[:_MAX_PRINTED]
            if "callback" not in reply:
                break
            self._serve_callback(reply, buffers)
        if "error" in reply:
            raise self._exception(reply["error"])
        return self._accept(reply, buffers, message)

    def _serve_callback(self, reply: dict[str, Any], buffers: list[bytearray]) -> None:
        self._nested += 1
        try:
            number = reply["callback"]
            if type(number) is not int or not 0 <= number < len(self.callbacks):
                raise WallError("a callback came back that no test gave away")
            args, kwargs = _plain(decode(reply["value"], buffers, self))
            answer = self.pack(self.callbacks[number](*args, **kwargs))
            self.link.send(answer.tree, answer.buffers)
        except Exception as error:
            self.link.send({"error": [type(error).__name__, str(error)]})
        finally:
            self._nested -= 1

    def _accept(self, reply: dict[str, Any], buffers: list[bytearray], message: Message) -> Any:
        """The value of a reply, with gradients attached and in-place arguments restored."""
        value = decode(reply.get("value"), buffers, self)
        try:
            leaf_grads = iter([decode(g, buffers, self) for g in reply.get("leaf_grads", [])])
            value = _walk(value, lambda t: t if t.index is not None else _with_grad(t.tensor, next(leaf_grads, None)))
            tracked: list[_Tracked] = []
            _walk(value, tracked.append)
            if tracked and type(reply.get("tape")) is int:
                leaves = message.leaves or [torch.zeros((), requires_grad=True)]
                results = iter(_Backward.apply(self, reply["tape"], tracked, *leaves))
                value = _walk(value, lambda _: next(results))
            else:
                value = _plain(value)
            for original, changed in zip(message.in_place, reply.get("in_place", []), strict=True):
                _restore(original, _plain(decode(changed, buffers, self)))
        except Exception as error:
            raise WallError(f"a malformed answer came back ({type(error).__name__}: {error})") from None
        return value

    def _exception(self, error: Any) -> BaseException:
        """The student's exception as the nearest class that exists here; never a class of the student's."""
        if type(error) is not dict or type(error.get("classes")) is not list:
            return WallError("a malformed exception came back")
        message = str(error.get("message", ""))[:_MAX_MESSAGE]
        names = [n for n in error["classes"][:_MAX_CLASSES] if type(n) is str]
        if "grader.link.WallError" in names:
            return WallError(message)
        for name in names:
            module, _, attribute = name.rpartition(".")
            kind = self._exception_class(module, attribute)
            if kind is not None:
                made = _make_exception(kind, message)
                if made is not None:
                    made.__student_where__ = str(error.get("where", ""))[:_MAX_WHERE]  # type: ignore[attr-defined]
                    return made
        return StudentError(f"{names[0].rpartition('.')[2][:80] if names else 'error'}: {message}")

    def _exception_class(self, module: str, name: str) -> type[Exception] | None:
        if module == "builtins":
            found = vars(builtins).get(name)
        elif module == "__main__":
            found = self.main.__dict__.get(name) if name in self.setup_names else None
        elif module.split(".")[0] in ("threeloops", "torch", "numpy"):
            found = _from_loaded(module, name)
        else:
            found = None
        is_usable = isinstance(found, type) and issubclass(found, Exception) and found is not Exception
        return found if is_usable else None

    def encode_tensor(self, tensor: torch.Tensor) -> int | None:
        if not tensor.requires_grad:
            return None
        self._message.leaves.append(tensor)
        return len(self._message.leaves) - 1

    def encode_record(self, value: Any) -> bool:
        return False

    def encode_object(self, value: Any) -> Any:
        if type(value) is Proxy:
            return {"h": value._handle}
        message = self._message
        if isinstance(value, wall.InOut):
            message.in_place.append(value.value)
            return {"inout": encode(value.value, message.buffers, self)}
        if self._is_callback(value):
            self.callbacks.append(value)
            return {"callback": len(self.callbacks) - 1}
        if isinstance(value, wall.ByValue):
            value = value.value
        leaves = []
        if isinstance(value, torch.nn.Module):
            for parameter in value.parameters():
                if parameter.requires_grad:
                    leaves.append(len(message.leaves))
                    message.leaves.append(parameter)
        message.by_value.append(value)
        return {"pickled": [len(message.by_value) - 1, leaves]}

    def _is_callback(self, value: Any) -> bool:
        """Functions of a test stay here and are called back; library functions and modules travel."""
        return (
            callable(value)
            and not isinstance(value, (torch.nn.Module, type, wall.ByValue))
            and getattr(value, "__module__", None) == "__main__"
            and getattr(value, "__name__", "") not in self.setup_names
        )

    def decode_tensor(self, tensor: torch.Tensor, grad: Any) -> Any:
        if grad is None:
            return tensor
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise WallError("a malformed value came back (an integer tensor cannot require a gradient)")
        if grad == "leaf":
            return _Tracked(tensor, None)
        if type(grad) is not int or not 0 <= grad < _MAX_TAPE:
            raise WallError("a malformed value came back (bad place in autograd)")
        return _Tracked(tensor, grad)

    def decode_record(self, module: Any, name: Any, fields: Any) -> Any:
        """A dataclass, enum member or named tuple whose class exists here, filled without running student code."""
        if module == "__main__":
            kind = self.main.__dict__.get(name) if name in self.setup_names else None
        else:
            kind = _from_loaded(module, name) if str(module).startswith("threeloops.") else None
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and type(fields) is str:
            return kind[fields]
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return kind._make(_plain([v for _, v in fields]))  # type: ignore[attr-defined]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            expected = [f.name for f in dataclasses.fields(kind)]
            if [f for f, _ in fields] != expected:
                raise WallError(f"a malformed {name} came back: expected the fields {expected}")
            record = object.__new__(kind)
            for field, value in fields:
                object.__setattr__(record, field, _plain(value))
            return record
        raise WallError(f"a record of an unknown class came back: {str(name)[:80]!r}")

    def decode_object(self, tag: str, value: Any, inner: Callable[[Any], Any]) -> Any:
        if tag == "h":
            return Proxy(self, value)
        raise WallError("a malformed value came back (unknown tag)")


class _Pickler(cloudpickle.Pickler):
    """By value, except what setup cells define: those classes and functions exist on both sides."""

    def __init__(self, file: io.BytesIO, connection: Wall) -> None:
        super().__init__(file)
        self.connection = connection

    def reducer_override(self, obj: Any) -> Any:
        name = getattr(obj, "__qualname__", "")
        main = self.connection.main
        is_shared = isinstance(obj, (type, types.FunctionType)) and name in self.connection.setup_names
        if is_shared and main.__dict__.get(name) is obj:
            return sys.modules[MAIN_TWIN].lookup, (name,)
        return super().reducer_override(obj)


def _lookup(name: str) -> Any:
    return getattr(sys.modules["__main__"], name)


def install_main_twin(main: types.ModuleType) -> None:
    """Make `main` this process's `__main__`, and let pickles refer to its setup names by module and name."""
    twin = types.ModuleType(MAIN_TWIN)
    lookup = types.FunctionType(_lookup.__code__, globals(), "lookup")
    lookup.__module__, lookup.__qualname__ = MAIN_TWIN, "lookup"
    twin.lookup = lookup  # type: ignore[attr-defined]
    sys.modules[MAIN_TWIN] = twin
    sys.modules["__main__"] = main


def _from_loaded(module: Any, name: Any) -> Any:
    """A name of a module that is loaded here; without `getattr`, by which some modules import more of themselves."""
    loaded = sys.modules.get(module)
    return vars(loaded).get(name) if isinstance(loaded, types.ModuleType) else None


def _make_exception(kind: type[Exception], message: str) -> Exception | None:
    """An exception of that class and text; None where the class cannot be made from a text alone."""
    for make in (lambda: kind(message), lambda: kind.__new__(kind, message)):
        with suppress(Exception):
            made = make()
            if isinstance(made, kind) and str(made) is not None:  # a class may word itself by attributes it lacks now
                return made
    return None


def _walk(value: Any, visit: Callable[[_Tracked], Any]) -> Any:
    """Replace the tracked tensors in plain containers."""
    kind = type(value)
    if kind is _Tracked:
        return visit(value)
    if kind in (list, tuple):
        return kind(_walk(v, visit) for v in value)
    if kind is dict:
        return {k: _walk(v, visit) for k, v in value.items()}
    return value


def _plain(value: Any) -> Any:
    return _walk(value, lambda t: t.tensor)


def _with_grad(tensor: torch.Tensor, grad: Any) -> torch.Tensor:
    tensor.requires_grad_(True)
    if isinstance(grad, torch.Tensor) and grad.shape == tensor.shape and grad.dtype == tensor.dtype:
        tensor.grad = grad
    return tensor


def _restore(original: Any, changed: Any) -> None:
    """Copy an in-place change back into the test's own object."""
    if isinstance(original, torch.nn.Module):
        original.load_state_dict(changed["state"])
        for parameter, grad in zip(original.parameters(), changed["grads"], strict=True):
            parameter.grad = None if grad is None else grad.reshape(parameter.shape).to(parameter.dtype)
    elif isinstance(original, torch.Tensor):
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
