"""Write a kernel in one form before it is checked: each function of Triton has one name, and parts without an effect
are left out.

Programmers import Triton under many names, annotate arguments as they like, and assert and print while they look for a
mistake. None of this changes what a kernel computes. So names are replaced by those that the rules know (`tl.load` for
`L.load`), and annotations, messages and prints that cannot matter are left out. These parts are never executed.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from threeloops.inner.replay.allowlist.names import DTYPES, MATH_FUNCTIONS, MATH_NUMBERS, TL

__all__ = ["TYPE", "Canonical", "aliases_of", "bound_names", "named", "path_of", "stored_names"]

TYPE = re.compile(
    r"(const )?\*?(tl\.)?(u?int(1|8|16|32|64)?|[iu](1|8|16|32|64)|(fp|float|bf|bfloat)[0-9][0-9a-z]*|float|half|double"
    r"|bool)\*?"
)
"""The types that Triton reads in an annotation written as a text."""

_MODULES = {"tl": "tl", "triton": "triton", "math": "math", "np": "numpy", "numpy": "numpy", "torch": "torch"}
"""Modules that the setup cells of the labs import, under the names that the cells give them."""
_PYTHON_TYPES = {"int": "tl.int32", "float": "tl.float32", "bool": "tl.int1"}
_LONGEST_PATH = 80
_PARTS = ("core", "standard", "random")
_PRINTS = ("print", "tl.device_print", "tl.static_print")
_ASSERTIONS = ("tl.static_assert", "tl.device_assert")


class Canonical(ast.NodeTransformer):
    """A rewriter of one kernel in place, or of one expression of the cell's top level.

    Args:
        aliases: the meanings of the cell's names, from `aliases_of`.
        constants: names of the cell's constants.
        local: names that a kernel binds itself, and the cell's kernels. They hide all others.
    """

    def __init__(
        self, aliases: Mapping[str, str], constants: Collection[str] = (), local: Collection[str] = ()
    ) -> None:
        self.aliases = aliases
        self.constants = constants
        self.local = set(local)
        self.compile_time: set[str] = set()

    def kernel(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Return the kernel in its canonical form. Its decorators stay as they are."""
        outside = Canonical(self.aliases)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in given:
            argument.annotation = outside.annotation(argument.annotation)
            if path_of(argument.annotation) == "tl.constexpr":
                self.compile_time.add(argument.arg)
        node.args.defaults = [outside.visit(default) for default in node.args.defaults]
        node.returns = None
        node.body = [self.visit(statement) for statement in node.body]
        return ast.fix_missing_locations(node)

    def annotation(self, node: ast.expr | None) -> ast.expr | None:
        """Return the part of an annotation that Triton acts on: tl.constexpr or a type, or None for anything else."""
        if node is None:
            return None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip()
            if "constexpr" in text:
                return named("tl.constexpr", node)
            return ast.copy_location(ast.Constant(text), node) if TYPE.fullmatch(text) else None
        node = self.visit(node)
        if any(path_of(part) == "tl.constexpr" for part in ast.walk(node)):
            return named("tl.constexpr", node)
        path = _PYTHON_TYPES.get(path_of(node), path_of(node))
        return named(path, node) if path in {f"tl.{name}" for name in DTYPES | {"const"}} else None

    def visit_Name(self, node: ast.Name) -> ast.expr:
        path = "" if node.id in self.local or isinstance(node.ctx, ast.Store) else self.aliases.get(node.id, "")
        return node if path in ("", "numpy", "torch") else named(path, node)  # of these two, see visit_Attribute

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == "value" and isinstance(node.value, ast.Name) and self._is_compile_time(node.value.id):
            return node.value  # of a constexpr: the interpreter holds the number itself
        root, dot, rest = path_of(node).partition(".")
        if root in self.local:
            return node
        path = _shortened(self.aliases.get(root, root) + dot + rest)
        return named(path, node) if path.startswith(("tl.", "math.")) or path == "tl" else node

    def _is_compile_time(self, name: str) -> bool:
        return name in self.compile_time or (name in self.constants and name not in self.local)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if path_of(node.func) in _ASSERTIONS:
            node.args[1:2] = [_message(message) for message in node.args[1:2]]
            for keyword in node.keywords:
                if keyword.arg == "msg":
                    keyword.value = _message(keyword.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """Rewrite assert as tl.device_assert, as Triton compiles it."""
        given = [node.test] if node.msg is None else [node.test, node.msg]
        call = ast.Call(named("tl.device_assert", node), given, [])
        return self.visit(ast.copy_location(ast.Expr(ast.copy_location(call, node)), node))

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        match node.value:
            case ast.Constant(value=str()):  # a docstring, which is not written
                return node
            case ast.Constant() | ast.JoinedStr():
                return ast.copy_location(ast.Pass(), node)
        if isinstance(node.value, ast.Call):
            function = path_of(self.visit(node.value.func))
            if function in _PRINTS and function not in self.local:
                return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        kind = None if isinstance(node.annotation, ast.Constant) else self.annotation(node.annotation)
        if node.value is None:
            return node
        value = self.visit(node.value)
        if kind is not None and path_of(kind) == "tl.constexpr":
            return ast.copy_location(ast.AnnAssign(self.visit(node.target), kind, value, node.simple), node)
        return ast.copy_location(ast.Assign([self.visit(node.target)], value), node)

    def visit_While(self, node: ast.While) -> ast.stmt:
        self.generic_visit(node)
        if isinstance(node.test, ast.Call) and path_of(node.test.func) == "tl.condition" and node.test.args:
            node.test = node.test.args[0]  # the rest are hints for the compiler
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node  # inside of a kernel: refused by the rules


def aliases_of(body: Sequence[ast.stmt], own: Collection[str]) -> dict[str, str]:
    """Return the meanings of a cell's names, as paths: {"L": "tl", "load": "tl.load"}. `own` are its kernels.

    A name counts if every statement that binds it at the top level gives it the same meaning.
    """
    meanings: dict[str, list[str]] = {}
    for name, path in _meanings(body, own):
        meanings.setdefault(name, []).append(path)
    bound = Counter(bound_names(body))
    aliases = {name: path for name, path in _MODULES.items() if not bound[name]}
    for name, paths in meanings.items():
        if len(set(paths)) == 1 and bound[name] in (len(paths), 0):
            aliases[name] = paths[0]
    return {name: path for name, path in aliases.items() if path.partition(".")[0] in {*_MODULES.values(), *own}}


def _meanings(body: Sequence[ast.stmt], own: Collection[str]) -> Iterator[tuple[str, str]]:
    paths = {**_MODULES, **{name: name for name in own}}
    for node in _statements(body):
        bindings: list[tuple[str, str]] = []
        match node:
            case ast.Import(names=names):
                for alias in names:
                    root = alias.name.partition(".")[0]
                    bindings.append((alias.asname, _shortened(alias.name)) if alias.asname else (root, root))
            case ast.ImportFrom(module=str(module), names=[ast.alias(name="*")]) if _shortened(module) == "tl":
                bindings += [(name, f"tl.{name}") for name in sorted(TL)]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                bindings += [(alias.asname or alias.name, _shortened(f"{module}.{alias.name}")) for alias in names]
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if path := path_of(value):
                root, dot, rest = path.partition(".")
                if root in paths and name not in own and len(path := paths[root] + dot + rest) <= _LONGEST_PATH:
                    bindings.append((name, _shortened(path)))
        paths.update(bindings)
        yield from bindings


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, and those inside its compound statements, but none of a function or class."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from _statements(getattr(node, part, []))


def bound_names(body: Collection[ast.AST]) -> Iterator[str]:
    """Yield every name that module-level statements bind, once per binding, without names that functions bind
    inside."""
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
            queue += _parts_outside_comprehensions(node)


def stored_names(function: ast.FunctionDef) -> Iterator[ast.Name]:
    """Yield the names that a function's statements bind. A comprehension's own name is not one of them."""
    queue: list[ast.AST] = [*function.body]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node
        queue += _parts_outside_comprehensions(node)


def _parts_outside_comprehensions(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.comprehension):
        return [node.iter, *node.ifs]
    return list(ast.iter_child_nodes(node))


def path_of(node: ast.AST | None) -> str:
    """Return a dotted name as text: "tl.math.exp", or "" for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def named(path: str, at: ast.AST) -> Any:
    """Return the expression with this text, at the place of another."""
    node = ast.parse(path, mode="eval").body
    for part in ast.walk(node):
        if isinstance(part, ast.expr):
            ast.copy_location(part, at)
    return node


def _shortened(path: str) -> str:
    """Return the path under which the rules know a name."""
    if path == "triton.language" or path.startswith("triton.language."):
        path = "tl" + path.removeprefix("triton.language")
    match path.split("."):
        case ["tl", part, name] if part in _PARTS and name in TL:
            return f"tl.{name}"
        case ["numpy" | "torch", name] if name in MATH_NUMBERS | MATH_FUNCTIONS:
            return f"math.{name}"
    return path


def _message(node: ast.expr) -> ast.expr:
    """Return the message of an assertion, as a text: it may be put together by any expression, which is not
    executed."""
    return node if isinstance(node, ast.Constant) else ast.copy_location(ast.Constant(_template(node)), node)


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_template, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)
