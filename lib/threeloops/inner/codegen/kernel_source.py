"""A kernel as self-contained source text: its function, the functions it calls and the constants it uses.

A kernel may be defined in a notebook cell, in a function or in a module with many imports. Triton compiles the text of
a function and looks up its free names among the globals, so another process needs only those texts and names.
"""

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from threeloops.inner.launches.launch import FunctionName
from threeloops.places import source_name

__all__ = ["KernelName", "KernelText", "UnsupportedValue", "from_source", "portable"]

_IMPORTABLE = ("triton", "builtins", "math")
"""Packages whose functions and classes a kernel may use by name; others must be jit functions with source text."""

_JIT_OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")


@dataclass(frozen=True)
class KernelText:
    """A kernel defined as `name` in a file's text, imports included; the file need not exist."""

    text: str
    name: str
    file: str = "<kernel>"


@dataclass(frozen=True)
class KernelName:
    """A kernel by name, in a module that can be imported or else in a file."""

    module: str
    file: str
    name: str


class UnsupportedValue(TypeError):
    """A value that no kernel can use."""


def from_source(text: str, name: str, file: str = "<kernel>") -> KernelText:
    """Return the kernel `name` of a file of source text. The file imports everything that it uses, and defines the
    kernel at its top level.

    The text is executed when it is compiled, so check untrusted text first. `dataclasses.replace(launch,
    kernel=from_source(…))` replaces the kernel of a recorded launch. Raises SyntaxError and LookupError.
    """
    bound = sorted(node.name for node in ast.parse(text, file).body if isinstance(node, ast.FunctionDef))
    if name not in bound:
        raise LookupError(f"name = {name!r}: {file} defines {', '.join(bound) or 'no function'} at its top level")
    return KernelText(text, name, file)


def portable(kernel: Any, constants: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return plain data for the worker: the kernel, and its constants (which may be functions too)."""
    functions = _Functions()
    source: dict[str, Any]
    if isinstance(kernel, KernelText | KernelName):
        source = {**vars(kernel), "functions": functions.all}
    else:
        source = {"entry": functions.add(kernel), "functions": functions.all}
    return source, {name: functions.reference(constant) for name, constant in constants.items()}


class _Functions:
    """The functions of a request, each once. They refer to one another by number, because they may be recursive."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self.numbers: dict[FunctionType, int] = {}

    def add(self, decorated: Any) -> int:
        kind, options, function = _undecorated(decorated)
        if function in self.numbers:
            return self.numbers[function]
        number = self.numbers[function] = len(self.all)
        source, line = _definition(function)
        spec: dict[str, Any] = {"kind": kind, "options": options, "source": source, "line": line}
        spec |= {name: getattr(function, f"__{name}__") for name in ("name", "module", "qualname")}
        spec["file"] = function.__code__.co_filename
        self.all.append(spec)
        spec["defaults"] = [self.reference(default) for default in function.__defaults__ or ()]
        spec["keyword_defaults"] = self.references(function.__kwdefaults__ or {})
        spec["annotations"] = self.references(function.__annotations__)
        spec["names"] = self.references(_free_names(function, source))
        return number

    def references(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the referenced values, without those that no kernel can use. If this one uses them, the compiler
        says so."""
        references = {}
        for name, value in named.items():
            with contextlib.suppress(UnsupportedValue):
                references[name] = self.reference(value)
        return references

    def reference(self, value: Any) -> Any:
        """Return JSON that `kernels.value` turns back into `value`."""
        import triton.language as tl
        from triton.runtime.jit import KernelInterface

        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tl.constexpr):
            return {"constexpr": self.reference(value.value)}
        if isinstance(value, tl.dtype):
            return {"dtype": value.name}
        if isinstance(value, tuple | list):
            return {"tuple": [self.reference(member) for member in value]}
        if isinstance(value, ModuleType):
            return {"module": value.__name__}
        if isinstance(value, FunctionName):
            return {"import": [value.module, value.name]}
        jitted = isinstance(value, KernelInterface) or type(value).__name__ == "ConstexprFunction"
        owner = _undecorated(value)[2] if jitted else value
        module = getattr(owner, "__module__", None)
        name = getattr(owner, "__qualname__", None)
        if jitted and not str(module).startswith("triton."):
            return {"function": self.add(value)}
        if callable(value) and name and str(module).split(".")[0] in _IMPORTABLE:
            return {"import": [module, name]}
        raise UnsupportedValue(f"{value!r}: expected a number, a string, a dtype, a tuple, a module or a jit function")


def _undecorated(kernel: Any) -> tuple[str, dict[str, Any], FunctionType]:
    """Return the kind of decorator, its options and the function, below autotuners and heuristics. Raises TypeError for
    anything but a kernel."""
    innermost = kernel
    while hasattr(getattr(innermost, "fn", None), "fn"):
        innermost = innermost.fn
    function = getattr(innermost, "fn", None)
    if not isinstance(function, FunctionType):
        raise TypeError(
            f"kernel = {kernel!r}: expected a function decorated with triton.jit, or from_source(text, name)"
        )
    if type(innermost).__name__ == "ConstexprFunction":
        return "constexpr_function", {}, function
    given = getattr(innermost, "kwargs", None) or vars(innermost)  # the interpreter's decorator keeps these
    options = {name: given[name] for name in _JIT_OPTIONS if given.get(name)}
    return "gluon" if "Gluon" in type(innermost).__name__ else "jit", options, function


def _definition(function: FunctionType) -> tuple[str, int]:
    """Return the dedented text of a function from its `def` on, and the line of its file where the text begins. Raises
    OSError, naming the function, if its source is unknown (made by exec, or typed into a plain prompt)."""
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError as error:
        place = f"{source_name(function.__code__.co_filename)}, line {function.__code__.co_firstlineno}"
        raise OSError(f"the source of {function.__name__} is not found at {place}: write it to a file") from error
    text = textwrap.dedent("".join(lines))
    skipped = ast.parse(text).body[0].lineno - 1
    return "".join(text.splitlines(keepends=True)[skipped:]), first + skipped


def _free_names(function: FunctionType, source: str) -> dict[str, Any]:
    """Return the values of the names in a function's text that it does not define: globals and closure variables."""
    code = function.__code__
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    closed = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            closed[name] = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    visible = {**function.__globals__, **closed}
    return {name: visible[name] for name in sorted(used - set(code.co_varnames)) if name in visible}
