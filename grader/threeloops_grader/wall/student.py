"""The student's end of the wall: run submitted cells, and answer the grader's requests about what they defined.

Everything here runs in the same process as hostile code, so nobody trusts it: the grader's side checks every frame that
comes from it. Its job is to be a faithful host for honest submissions.
"""

from __future__ import annotations

import builtins
import enum
import fcntl
import io
import json
import os
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threeloops.frames import Buffer
from threeloops.lab.checking import wall
from threeloops.lab.course.lab_cells import OF_LAB

from threeloops_grader.sandbox import confine
from threeloops_grader.transport.errors import described
from threeloops_grader.transport.link import FrameLink, LinkDead, WallError
from threeloops_grader.transport.tensors import is_module, is_tensor
from threeloops_grader.transport.wire import decode, encode
from threeloops_grader.witness.calls import Calls

if TYPE_CHECKING:
    import torch

__all__ = ["MAIN_TWIN", "Output", "Server", "install_main_twin", "make_shell"]

MAIN_TWIN = "threeloops_main"
"""Module through which the grader's pickles refer to classes of setup cells, which exist on both sides."""

_SHOWN = ("text/plain", "image/png")


def install_main_twin(definitions: Mapping[str, Any] | None = None) -> None:
    """Let pickles refer to the definitions of setup cells by module and name. `lookup` finds them on either side, first
    among `definitions`."""

    def lookup(name: str) -> Any:
        return definitions[name] if definitions and name in definitions else getattr(sys.modules["__main__"], name)

    lookup.__module__ = MAIN_TWIN
    lookup.__qualname__ = "lookup"
    twin = types.ModuleType(MAIN_TWIN)
    twin.lookup = lookup  # type: ignore[attr-defined]
    sys.modules[MAIN_TWIN] = twin


class _SetupNames(dict[str, Any]):
    """The names that setup cells have bound, with their values at that time. A test that names a setup function gets
    the one in here. Its globals are these names, so an answer that binds the same names, by chance or by intent, does
    not change it."""

    def add(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Take the names that a setup cell has bound."""
        for name, value in after.items():
            if name not in before or before[name] is not value:
                self[name] = self._twin(value) if isinstance(value, types.FunctionType) else value
        self |= {"__name__": "__main__", "__builtins__": builtins}

    def _twin(self, function: types.FunctionType) -> types.FunctionType:
        if function.__module__ != "__main__":
            return function
        code = function.__code__
        defaults = function.__defaults__
        closure = function.__closure__
        made = types.FunctionType(code, self, function.__name__, defaults, closure)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__ = function.__qualname__
        made.__annotations__ = function.__annotations__
        made.__doc__ = function.__doc__
        made.__dict__.update(function.__dict__)
        return made


@dataclass
class _Tape:
    """Autograd state of one call: which arguments and results require gradients."""

    inputs: dict[int, torch.Tensor] = field(default_factory=dict)
    outputs: list[torch.Tensor] = field(default_factory=list)


def make_shell() -> Any:
    """Return a bare IPython shell: magics, `!command`, top-level await and rich display, without a Jupyter kernel."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Capture(DisplayHook):
        def __call__(self, result: Any = None) -> None:
            if result is not None and self.shell is not None and not self.quiet():
                self.shell.display_pub.publish(self.shell.display_formatter.format(result)[0])

    class Shell(InteractiveShell):
        displayhook_class = Capture
        display_pub_class = CapturingDisplayPublisher

        def enable_gui(self, gui: str | None = None) -> None:
            """Do nothing, because `%matplotlib inline` and its kin need no event loop here."""

        def init_sys_modules(self) -> None:
            sys.modules["__main__"] = self.user_module

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.cache_size = 0
    main = types.ModuleType("__main__")
    # Made by `instance`: without it IPython's own `display` finds no shell and prints instead.
    return Shell.instance(config=config, user_module=main, user_ns=main.__dict__)


class Output:
    """The output of the student's code, descriptors 1 and 2 included, kept in the file `fd` and cut at `limit`
    bytes."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.limit = limit
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND | os.O_RDWR)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(self.fd, number)
            raw = os.fdopen(number, "wb", 0, closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True))

    def take(self) -> str:
        """Return the output since the last call."""
        size = os.fstat(self.fd).st_size
        if not size:
            return ""
        text = os.pread(self.fd, min(size, self.limit), 0).decode("utf-8", "replace")
        with suppress(OSError):
            os.ftruncate(self.fd, 0)
        return text + (f"\n[… {size - self.limit:,} more bytes were cut]\n" if size > self.limit else "")


class Server:
    """Answers one grader until it hangs up."""

    def __init__(self, link: FrameLink, calls: Calls, shell: Any, output: Output) -> None:
        self.link = link
        self.calls = calls
        self.shell = shell
        self.output = output
        self.setup_types: set[type] = set()
        self.setup_names = _SetupNames()
        install_main_twin(self.setup_names)
        self.handles: dict[int, Any] = {}
        self.tapes: dict[int, _Tape] = {}
        self.next_id = 0
        self.cells = 0
        self.tape: _Tape | None = None
        self.leaves: list[torch.Tensor] = []
        self.in_place: list[Any] = []
        self.by_value: list[Any] = []

    def serve(self) -> None:
        while True:
            try:
                tree, buffers = self.link.receive()
                self.answer(tree, buffers)
            except KeyboardInterrupt:
                continue
            except LinkDead:
                return

    def answer(self, tree: dict[str, Any], buffers: list[bytearray]) -> None:
        self.tape = _Tape()
        self.leaves = []
        self.in_place = []
        out: list[Buffer] = []
        try:
            if "seed" in tree:
                import torch

                torch.manual_seed(tree["seed"])
            self.by_value = pickle.loads(buffers[tree["pickle"]]) if "pickle" in tree else []
            value = getattr(self, f"on_{tree['op']}")(tree, buffers)
            reply = {"value": encode(value, out, self)}
            self._add_state(reply, out)
        except LinkDead:
            raise
        except BaseException as error:
            out, reply = [], {"error": described(error)}
        reply["printed"] = self.output.take()
        try:
            self.link.send(reply, out)
        except WallError as error:
            self.link.send({"error": described(error), "printed": ""})

    def _add_state(self, reply: dict[str, Any], out: list[Buffer]) -> None:
        """Add the effects of the call besides its value to the reply: gradients, changed arguments, a tape."""
        if self.leaves:
            leaves = self.leaves
            self.leaves = []
            reply["leaf_grads"] = [encode(None if t.grad is None else t.grad.detach(), out, self) for t in leaves]
        if self.in_place:
            reply["in_place"] = [encode(_state_of(o), out, self) for o in self.in_place]
        if self.tape and self.tape.outputs:
            self.next_id += 1
            self.tapes[self.next_id] = self.tape
            reply["tape"] = self.next_id

    def on_cell(self, tree: dict[str, Any], _: list[bytearray]) -> dict[str, Any]:
        """Run one cell's text; its error, if any, is part of the value."""
        self.tape = None
        self.shell.display_pub.outputs.clear()
        before = dict(self.shell.user_ns) if tree.get("setup") else {}
        self.cells += 1
        name = f"{OF_LAB if tree.get('setup') else '<cell '}{self.cells}>"
        self.shell.compile.get_code_name = lambda *_: name
        result = self.shell.run_cell(tree["source"], store_history=False)
        if tree.get("setup"):
            self.setup_names.add(before, self.shell.user_ns)
            values = self.setup_names.values()
            self.setup_types |= {v for v in values if isinstance(v, type) and v.__module__ == "__main__"}
        error = result.error_before_exec or result.error_in_exec
        shown = [
            {kind: text for kind, text in o["data"].items() if kind in _SHOWN and isinstance(text, str)}
            for o in self.shell.display_pub.outputs
        ]
        return {
            "error": None if error is None else described(error),
            "shown": json.dumps(shown)[: 2 << 20],
            "full": isinstance(error, MemoryError) and confine.has_little_room(),
        }

    def on_get(self, tree: dict[str, Any], _: list[bytearray]) -> Any:
        self.tape = None
        return self.shell.user_ns[tree["name"]]

    def on_attribute(self, tree: dict[str, Any], _: list[bytearray]) -> Any:
        self.tape = None
        return getattr(self.handles[tree["handle"]], tree["name"])

    def on_set(self, tree: dict[str, Any], buffers: list[bytearray]) -> None:
        setattr(self.handles[tree["handle"]], tree["name"], decode(tree["value"], buffers, self))

    def on_free(self, tree: dict[str, Any], _: list[bytearray]) -> None:
        for handle in tree["handles"]:
            self.handles.pop(handle, None)

    def on_call(self, tree: dict[str, Any], buffers: list[bytearray]) -> Any:
        args, kwargs = decode(tree["value"], buffers, self)
        if "library" in tree:
            return wall.resolve(*tree["library"])(*args, **kwargs)
        owner, name = tree.get("method_of", (None, ""))
        target = getattr(self.handles[owner], name) if owner in self.handles else self.handles[tree["handle"]]
        if "method" not in tree:
            return target(*args, **kwargs)
        method = getattr(type(target), tree["method"], None)
        if method is None:
            raise TypeError(f"{type(target).__name__} object has no {tree['method']}")
        return method(target, *args, **kwargs)

    def on_backward(self, tree: dict[str, Any], buffers: list[bytearray]) -> list[torch.Tensor | None]:
        tape = self.tapes[tree["tape"]]
        grads = decode(tree["value"], buffers, self)
        pairs = [(o, g) for o, g in zip(tape.outputs, grads, strict=True) if g is not None]
        for t in tape.inputs.values():
            t.grad = None
        import torch

        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs], retain_graph=True)
        self.tape = None
        return [tape.inputs[i].grad if i in tape.inputs else None for i in range(tree["leaves"])]

    def encode_tensor(self, tensor: torch.Tensor) -> Any:
        if not tensor.requires_grad:
            return None
        is_argument = self.tape is not None and any(tensor is t for t in self.tape.inputs.values())
        if tensor.is_leaf and not is_argument:
            self.leaves.append(tensor)
            return "leaf"
        if self.tape is None:
            return None
        self.tape.outputs.append(tensor)
        return len(self.tape.outputs) - 1

    def encode_record(self, value: Any) -> bool:
        return type(value) in self.setup_types or type(value).__module__.startswith("threeloops.")

    def encode_object(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        """Encode a tuple of a class of the student's as a tuple, and `http.HTTPStatus.OK` as 200.

        All other values stay here, and the grader gets a handle.
        """
        if isinstance(value, tuple):
            return {"t": [inner(part) for part in tuple.__iter__(value)]}
        if isinstance(value, (enum.IntEnum, enum.StrEnum)):
            return inner(value.value)
        self.next_id += 1
        self.handles[self.next_id] = value
        kind = "iterator" if hasattr(type(value), "__next__") else type(value).__name__[:80]
        name = getattr(value, "__qualname__", None)
        return {"h": [self.next_id, kind, (name if isinstance(name, str) else type(value).__qualname__)[:80]]}

    def decode_tensor(self, tensor: torch.Tensor, grad: Any) -> torch.Tensor:
        if grad is not None:
            tensor.requires_grad_(True)
            assert self.tape is not None
            self.tape.inputs[grad] = tensor
        return tensor

    def decode_record(self, module: Any, name: Any, fields: Any) -> Any:
        raise WallError("records travel to the student by value")

    def decode_object(self, tag: str, value: Any, inner: Callable[[Any], Any]) -> Any:
        if tag == "h":
            return self.handles[value]
        if tag == "callback":
            return lambda *args, **kwargs: self.call_back(value, args, kwargs)
        if tag == "function":
            return self.calls.function(value)
        if tag == "pickled":
            return self._by_value(*value)
        if tag == "inout":
            changed = inner(value)
            self.in_place.append(changed)
            return changed
        raise WallError(f"unknown tag {tag!r}")

    def _by_value(self, index: int, leaves: list[int]) -> Any:
        value = self.by_value[index]
        if is_module(value) and self.tape is not None:
            self.tape.inputs.update(zip(leaves, (p for p in value.parameters() if p.requires_grad), strict=True))
        return value

    def call_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the test on the grader's side, while this side is answering a call of the grader."""
        out: list[Buffer] = []
        self.link.send({"callback": number, "value": encode([list(args), dict(kwargs)], out, self)}, out)
        state = (self.tape, self.leaves, self.in_place, self.by_value)
        while True:
            tree, buffers = self.link.receive()
            if "op" in tree:
                self.answer(tree, buffers)
                self.tape, self.leaves, self.in_place, self.by_value = state
                continue
            if "error" in tree:
                raise getattr(builtins, tree["error"][0], RuntimeError)(tree["error"][1])
            if "pickle" in tree:
                self.by_value = pickle.loads(buffers[tree["pickle"]])
            return decode(tree["value"], buffers, self)


def _state_of(value: Any) -> Any:
    """Return the parts of an argument that must be copied back because it was changed in place."""
    if is_module(value):
        return {"state": dict(value.state_dict()), "grads": [p.grad for p in value.parameters()]}
    return value.detach() if is_tensor(value) else value
