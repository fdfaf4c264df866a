"""Admit the kernels of a cell that may be judged: pure functions over `tl`, taken from the cell's text and rewritten.

A kernel's result and traffic are measured by running it, in a process of the grader's. So it is admitted only if it
holds nothing but arithmetic: `admit(text)` finds the top-level functions under `@triton.jit`, checks each against a
whitelist (`rules`) and writes a file that holds these functions and the constants they use, and no other line of the
cell. Line numbers stay the cell's own, so that errors and findings name the student's lines.
"""

import ast
import linecache
import re
import warnings
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from types import ModuleType

from threeloops.inner.replay.allowlist.canonical import Canonical, aliases_of, bound_names, path_of
from threeloops.inner.replay.allowlist.constants import constants_of, folded, is_literal, is_written
from threeloops.inner.replay.allowlist.rules import NotAdmitted, Rules
from threeloops.inner.replay.allowlist.source import PRELUDE, Lines, write

__all__ = ["Admitted", "Kernel", "admit"]

_MAX_CHARACTERS = 200_000
_MAGIC = re.compile(r"^\s*[%!?]")
_JIT = frozenset({"triton.jit", "jit", "triton.runtime.jit", "triton.runtime.jit.jit"})
_TUNERS = frozenset(
    f"{module}{name}" for module in ("triton.", "triton.runtime.", "") for name in ("autotune", "heuristics")
)
_KEPT = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline")
_DROPPED = ("debug", "version", "repr", "launch_metadata")


@dataclass(frozen=True)
class Kernel:
    """One admitted kernel: the place where the cell defines it, its parameters, and the names of the cell that it
    uses."""

    name: str
    line: int
    parameters: tuple[str, ...]
    constants: frozenset[str]
    uses: frozenset[str]


@dataclass(frozen=True)
class Admitted:
    """The text of a file with the admitted kernels on the lines where `file`, the cell, has them."""

    text: str
    kernels: dict[str, Kernel]
    file: str

    def load(self) -> ModuleType:
        """Return a module made of this text alone. Its kernels are interpreted or compiled as this process decides."""
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.file] = (len(self.text), None, lines, self.file)  # None as the time: not looked up on disk
        module = ModuleType("admitted")
        module.__file__ = self.file
        exec(compile(self.text, self.file, "exec", dont_inherit=True), module.__dict__)
        return module


def admit(cell: str, launched: Collection[str] | None = None, file: str = "cell.py") -> Admitted:
    """Admit kernels of a cell: the named ones and all that they call. Without names, admit all of them.

    Args:
        cell: the whole text of the cell. Lines of IPython magic are skipped.
        launched: names of the kernels that matter. A name that the cell does not define is left out of the result.
        file: the cell's name in tracebacks and findings.

    Raises:
        NotAdmitted: a kernel holds more than arithmetic, or the text is not Python. The message names the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes in the cell's strings
            return _admit(_parse(cell), launched, file)
    except (RecursionError, MemoryError):
        raise NotAdmitted(1, "the cell is nested too deeply to be read") from None


def _admit(tree: ast.Module, launched: Collection[str] | None, file: str) -> Admitted:
    bound = Counter(bound_names(tree.body))
    cell = _Cell(tree, bound)
    functions = cell.functions
    constants = cell.constants
    wanted = sorted(functions if launched is None else set(launched) & set(functions))
    kernels: dict[str, Kernel] = {}
    used: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in kernels:
            continue
        kernels[name] = kernel = cell.kernel(name)
        used |= {name} | kernel.uses
        wanted += sorted(kernel.uses & set(functions))
    try:
        TopologicalSorter({name: kernels.keys() & kernel.uses for name, kernel in kernels.items()}).prepare()
    except CycleError as circle:
        name = min(circle.args[1])
        raise NotAdmitted(
            kernels[name].line, f"{name} calls itself", "Triton compiles no recursion: write a loop"
        ) from None
    for name in sorted(used):
        if bound[name] > 1:
            lines = [str(node.lineno) for node in tree.body if name in bound_names([node])]
            raise NotAdmitted(
                functions[name].lineno if name in functions else constants[name].line,
                f"the cell defines {name} {bound[name]} times (lines {', '.join(lines)})",
                "each kernel and each constant that a kernel uses has one definition, at the top level of the cell",
            )
    return Admitted(_checked(cell.text(used), kernels, set(constants) & used), kernels, file)


class _Cell:
    """The definitions of a cell that kernels use: functions under triton.jit, constants, and other names for parts of
    Triton."""

    def __init__(self, tree: ast.Module, bound: Counter[str]) -> None:
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.aliases = aliases_of(tree.body, {node.name for node in functions})
        self.functions = {node.name: node for node in functions if self._jit(node) is not None}
        constants = constants_of(tree.body, bound, self.aliases)
        self.constants = {name: constant for name, constant in constants.items() if name not in self.functions}
        self.values = {name: constant.value for name, constant in self.constants.items() if bound[name] == 1}
        own = self.functions.keys() | self.constants.keys()
        self.aliases = {name: path for name, path in self.aliases.items() if name not in own}

    def kernel(self, name: str) -> Kernel:
        """Check one kernel, and write it in its canonical form."""
        node = self.functions[name]
        self._check_decorators(node)
        local = {
            child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
        }
        local |= {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        node = Canonical(self.aliases, self.constants, local | self.functions.keys()).kernel(node)
        node.args.defaults = [folded(default, self.values) for default in node.args.defaults]
        uses = Rules(node, self.functions, self.constants).check()
        given = [*node.args.posonlyargs, *node.args.args]
        compile_time = frozenset(argument.arg for argument in given if path_of(argument.annotation) == "tl.constexpr")
        return Kernel(node.name, node.lineno, tuple(argument.arg for argument in given), compile_time, frozenset(uses))

    def text(self, used: Collection[str]) -> str:
        """Return a file with these kernels and constants, each on its line."""
        functions = [node for name, node in self.functions.items() if name in used]
        statements: list[ast.stmt] = [*functions, *(c.written() for c in self.constants.values() if c.name in used)]
        lines = Lines()
        lines.put(1, 0, PRELUDE)
        write(lines, sorted(statements, key=lambda node: node.lineno))
        for node in functions:
            options = self._options(node)
            decorate = f"triton.jit({options})" if options else "triton.jit"
            lines.put(lines.last + 1, 0, f"{node.name} = {decorate}({node.name})")
        return lines.text()

    def _called(self, decorator: ast.expr) -> str:
        """Return the decorator's function by the name that Triton gives it."""
        return path_of(Canonical(self.aliases).visit(_function(decorator))) or ast.unparse(_function(decorator))

    def _jit(self, node: ast.FunctionDef) -> ast.expr | None:
        """Return the decorator that makes a function a kernel."""
        return next((decorator for decorator in node.decorator_list if self._called(decorator) in _JIT), None)

    def _check_decorators(self, node: ast.FunctionDef) -> None:
        """Check the decorators. Tuners are dropped with any functions they hold, because the launch is recorded after
        tuning."""
        for decorator in node.decorator_list:
            name = self._called(decorator)
            if name not in _JIT | _TUNERS:
                allowed = "a kernel's decorators are triton.jit, and triton.autotune and triton.heuristics above it"
                raise NotAdmitted(decorator.lineno, f"{node.name} is decorated with {name[:60]}", allowed)
        if [self._called(decorator) in _JIT for decorator in node.decorator_list].count(True) > 1:
            raise NotAdmitted(node.lineno, f"{node.name} is decorated with triton.jit twice", "once is enough")
        self._options(node)

    def _options(self, node: ast.FunctionDef) -> str:
        """Return the arguments of `triton.jit` that matter to the compiler, as text. The others are never evaluated."""
        decorator = self._jit(node)
        if not isinstance(decorator, ast.Call):
            return ""
        options = [keyword for keyword in decorator.keywords if keyword.arg not in _DROPPED]
        if decorator.args or any(k.arg not in _KEPT or not _is_plain(k.value) for k in options):
            allowed = f"triton.jit takes {', '.join(_KEPT)} here, written as literals"
            raise NotAdmitted(decorator.lineno, f"{node.name} is decorated with {ast.unparse(decorator)[:80]}", allowed)
        return ", ".join(f"{k.arg}={ast.unparse(k.value)}" for k in options)


def _parse(cell: str) -> ast.Module:
    if len(cell) > _MAX_CHARACTERS:
        raise NotAdmitted(1, f"the cell has {len(cell):,} characters", f"at most {_MAX_CHARACTERS:,} are read")
    try:
        return ast.parse(cell)
    except (SyntaxError, ValueError):
        plain = "\n".join("" if _MAGIC.match(line) else line for line in cell.split("\n"))
    try:
        return ast.parse(plain)
    except SyntaxError as error:
        raise NotAdmitted(error.lineno or 1, f"the cell is not Python ({error.msg})", "write plain Python") from None
    except ValueError as error:
        raise NotAdmitted(1, f"the cell is not Python ({error})", "write plain Python") from None


def _function(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _is_plain(node: ast.expr) -> bool:
    return all(map(is_literal, node.elts)) if isinstance(node, ast.List) else is_literal(node)


def _checked(text: str, kernels: dict[str, Kernel], constants: Collection[str]) -> str:
    """Check the text itself against the rules once more, because the text is executed. Returns it."""
    first, second, third, *body = ast.parse(text).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    sound = "; ".join(map(ast.unparse, (first, second, third))) == PRELUDE and functions == set(kernels)
    for node in body:
        match node:
            case ast.FunctionDef(decorator_list=[]):
                Rules(node, functions, constants).check()
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=made, args=[ast.Name(id=same)], keywords=[])
            ) if name == same and name in functions:
                options = made.keywords if isinstance(made, ast.Call) and not made.args else []
                plain = all(option.arg in _KEPT and _is_plain(option.value) for option in options)
                sound = sound and path_of(_function(made)) == "triton.jit" and plain
            case _:
                sound = sound and is_written(node, constants)
    headers = [line for line in text.split("\n") if line.lstrip().startswith("def ")]
    if not sound or len(headers) != len(kernels) or any(line[0] == " " for line in headers):
        raise NotAdmitted(1, "the cell cannot be rewritten without changing its meaning", "write it more simply")
    return text
