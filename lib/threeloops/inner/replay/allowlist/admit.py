"""Which kernels of a cell may be judged: pure functions over `tl`, taken from the cell's text and written anew.

A kernel's result and traffic are measured by running it, in a process of the grader's. So it is admitted only if there
is nothing in it but arithmetic: `admit(text)` finds the top-level functions under `@triton.jit`, checks each against a
whitelist (`rules`) and writes a file that holds these functions and the constants they use, and no other line
of the cell. Line numbers stay the cell's own, so that errors and findings name the student's lines.
"""

import ast
import linecache
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from types import ModuleType

from threeloops.inner.replay.allowlist.constants import defined, is_constant, written
from threeloops.inner.replay.allowlist.names import RESERVED
from threeloops.inner.replay.allowlist.rules import NotAdmitted, Rules
from threeloops.inner.replay.allowlist.source import PRELUDE, Lines, write

__all__ = ["Admitted", "Kernel", "admit"]

_MAX_CHARACTERS = 200_000
_MAGIC = re.compile(r"^\s*[%!?]")
_JIT = ("triton.jit", "jit")
_TUNERS = ("triton.autotune", "autotune", "triton.heuristics", "heuristics")
_OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug")


@dataclass(frozen=True)
class Kernel:
    """One admitted kernel: where the cell defines it, what it takes, what it uses of its cell."""

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
        """A module made of this text alone; its kernels are interpreted or compiled as this process decides."""
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.file] = (len(self.text), None, lines, self.file)  # None as the time: not looked up on disk
        module = ModuleType("admitted")
        module.__file__ = self.file
        exec(compile(self.text, self.file, "exec", dont_inherit=True), module.__dict__)
        return module


def admit(cell: str, launched: Collection[str] | None = None, file: str = "cell.py") -> Admitted:
    """Admit kernels of a cell: those named and whatever they call; without names, all of them.

    Args:
        cell: the whole text of the cell. Lines of IPython magic are passed over.
        launched: names of the kernels that matter. A name that the cell does not define is left out of the result.
        file: what tracebacks and findings call the cell.

    Raises:
        NotAdmitted: a kernel holds more than arithmetic, or the text is no Python. The message names the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes in the cell's strings
            return _admit(_parse(cell), launched, file)
    except (RecursionError, MemoryError):
        raise NotAdmitted(1, "the cell is nested too deeply to be read") from None


def _admit(tree: ast.Module, launched: Collection[str] | None, file: str) -> Admitted:
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and _jit(node) is not None}
    constants = {name: node for node in tree.body for name in defined(node) if name not in RESERVED}
    known = set(functions) | set(constants)
    wanted = sorted(functions if launched is None else set(launched) & set(functions))
    kernels: dict[str, Kernel] = {}
    used: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in kernels:
            continue
        kernels[name] = kernel = _kernel(functions[name], functions, constants)
        used |= {name} | kernel.uses
        wanted += sorted(kernel.uses & set(functions))
    try:
        TopologicalSorter({name: kernels.keys() & kernel.uses for name, kernel in kernels.items()}).prepare()
    except CycleError as circle:
        name = min(circle.args[1])
        raise NotAdmitted(
            kernels[name].line, f"{name} calls itself", "Triton compiles no recursion: write a loop"
        ) from None
    bound = Counter(name for name in _bound(tree.body) if name in known)
    for name in sorted(used):
        if bound[name] > 1:
            lines = [str(node.lineno) for node in tree.body if name in _bound([node])]
            raise NotAdmitted(
                getattr(functions.get(name) or constants.get(name), "lineno", 1),
                f"the cell defines {name} {bound[name]} times (lines {', '.join(lines)})",
                "each kernel and each constant that a kernel uses has one definition, at the top level of the cell",
            )
    chosen = [node for node in tree.body if _name(node) in used or used & set(defined(node))]
    return Admitted(_checked(_text(chosen), kernels), kernels, file)


def _kernel(node: ast.FunctionDef, functions: Collection[str], constants: Collection[str]) -> Kernel:
    _decorators(node)
    uses = Rules(node, functions, constants).check()
    given = [*node.args.posonlyargs, *node.args.args]
    names = tuple(argument.arg for argument in given)
    compile_time = {a.arg for a in given if a.annotation is not None and ast.unparse(a.annotation) == "tl.constexpr"}
    return Kernel(node.name, node.lineno, names, frozenset(compile_time), frozenset(uses))


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


def _jit(node: ast.FunctionDef) -> ast.expr | None:
    """The decorator that makes a function a kernel."""
    return next((d for d in node.decorator_list if _called(d) in _JIT), None)


def _called(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _decorators(node: ast.FunctionDef) -> None:
    """Check the decorators. Tuners are dropped with any functions they hold: the launch is recorded after tuning."""
    for decorator in node.decorator_list:
        name = _called(decorator)
        if name not in _JIT + _TUNERS:
            allowed = "a kernel's decorators are triton.jit, and triton.autotune and triton.heuristics above it"
            raise NotAdmitted(decorator.lineno, f"{node.name} is decorated with {name[:60]}", allowed)
    if [_called(d) in _JIT for d in node.decorator_list].count(True) > 1:
        raise NotAdmitted(node.lineno, f"{node.name} is decorated with triton.jit twice", "once is enough")
    _options(node)


def _options(node: ast.FunctionDef) -> str:
    """The arguments of `triton.jit` that matter to the compiler, as text."""
    decorator = _jit(node)
    if not isinstance(decorator, ast.Call):
        return ""
    if decorator.args or any(k.arg not in _OPTIONS or not _is_plain(k.value) for k in decorator.keywords):
        allowed = f"triton.jit takes {', '.join(_OPTIONS)} here, written as literals"
        raise NotAdmitted(decorator.lineno, f"{node.name} is decorated with {ast.unparse(decorator)[:80]}", allowed)
    kept = [k for k in decorator.keywords if k.arg != "debug"]
    return ", ".join(f"{k.arg}={ast.unparse(k.value)}" for k in kept)


def _is_plain(node: ast.expr) -> bool:
    return all(map(is_constant, node.elts)) if isinstance(node, ast.List | ast.Tuple) else is_constant(node)


def _name(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, ast.FunctionDef) and _jit(node) is not None else None


def _bound(body: Collection[ast.stmt]) -> Iterator[str]:
    """Every name that module-level statements bind, once per binding; not what functions bind inside."""
    for statement in body:
        queue: list[ast.AST] = [statement]
        while queue:
            node = queue.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            if isinstance(node, ast.alias):
                yield (node.asname or node.name).partition(".")[0]
            queue += ast.iter_child_nodes(node)


def _text(chosen: Collection[ast.stmt]) -> str:
    lines = Lines()
    lines.put(1, 0, PRELUDE)
    write(lines, [node if isinstance(node, ast.FunctionDef) else written(node) for node in chosen])
    for node in chosen:
        if isinstance(node, ast.FunctionDef):
            options = _options(node)
            decorate = f"triton.jit({options})" if options else "triton.jit"
            lines.put(lines.last + 1, 0, f"{node.name} = {decorate}({node.name})")
    return lines.text()


def _checked(text: str, kernels: dict[str, Kernel]) -> str:
    """Check the text itself against the rules once more, because it is what gets executed; returns it."""
    first, second, *body = ast.parse(text).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    constants = {name for node in body for name in defined(node)}
    sound = f"{ast.unparse(first)}; {ast.unparse(second)}" == PRELUDE and functions == set(kernels)
    for node in body:
        match node:
            case ast.FunctionDef(decorator_list=[]):
                Rules(node, functions, constants).check()
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=made, args=[ast.Name(id=same)])) if (
                name == same and name in functions
            ):
                sound = sound and _called(made) == "triton.jit"
            case _:
                sound = sound and bool(defined(node))
    headers = [line for line in text.split("\n") if line.lstrip().startswith("def ")]
    if not sound or len(headers) != len(kernels) or any(line[0] == " " for line in headers):
        raise NotAdmitted(1, "the cell cannot be rewritten without changing its meaning", "write it more simply")
    return text
