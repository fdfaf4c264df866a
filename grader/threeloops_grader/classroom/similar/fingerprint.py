"""The fingerprint of an answer: its statements and expressions, without the details that are easy to change in a copy.

All names that the answer chooses itself become the same placeholder. Docstrings, comments, annotations and formatting
are removed, and operands are sorted if their order does not matter. A fingerprint counts the parts of the program and
ignores their order. So a copy is still recognised if statements were moved or added.

Existing tools do not fit. copydetect and compare50 compare sequences of tokens in whole files, which is too coarse for
answers of ten lines, and copydetect has had no release since 2024. dolos needs Node.js.
"""

import ast
import copy
from collections import Counter, defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass

__all__ = ["Fingerprint", "fingerprint", "given_names"]

_OWN = "_"
"""Stands for every name that the answer chooses."""
_LEAST_NODES = 3
"""Smaller expressions, such as `x + 1`, are in every program."""
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_COMMUTES = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Fingerprint:
    """Counts the parts of an answer, with their lines. A part is the dump of a normalised statement or expression."""

    parts: Counter[str]
    lines: dict[str, frozenset[int]]

    @property
    def size(self) -> int:
        return self.parts.total()

    def without(self, other: "Fingerprint") -> "Fingerprint":
        """Remove the parts of `other`, such as the stub that everybody starts from, and return the rest."""
        return Fingerprint(self.parts - other.parts, self.lines)

    def share_with(self, other: "Fingerprint") -> float:
        """Return how much of the smaller fingerprint the larger one contains. Padding a copy does not lower it."""
        smaller = min(self.size, other.size)
        return (self.parts & other.parts).total() / smaller if smaller else 0.0

    def lines_shared_with(self, other: "Fingerprint") -> frozenset[int]:
        """Return the lines of this answer that hold a shared part."""
        shared = self.parts & other.parts
        return frozenset().union(*(self.lines[part] for part in shared))


def fingerprint(source: str, given: Set[str]) -> Fingerprint:
    """Return the fingerprint of an answer. Names that are `given` by the exercise do not become placeholders.

    Raises SyntaxError, ValueError, RecursionError or MemoryError for a text that Python cannot parse.
    """
    tree = _parsed(source)
    names = _Names()
    names.visit(tree)
    plain = _Plain(names.bound - given, names.attributes - given).visit(tree)
    parts: Counter[str] = Counter()
    lines: dict[str, set[int]] = defaultdict(set)
    for part, line in _parts(plain, ""):
        parts[part] += 1
        lines[part].add(line)
    return Fingerprint(parts, {part: frozenset(numbers) for part, numbers in lines.items()})


def given_names(stub: str) -> frozenset[str]:
    """Return the names that the stub of an exercise defines: its functions, classes, methods and top-level values."""
    tree = _parsed(stub)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, _Function | ast.ClassDef)}
    values = {
        node.id
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return frozenset(defined | values)


def _parsed(source: str) -> ast.Module:
    """Parse a cell. If that fails, parse it without lines that begin with % or !, which are IPython commands."""
    try:
        return ast.parse(source)
    except SyntaxError:
        lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
        return ast.parse("\n".join(lines))


class _Names(ast.NodeVisitor):
    """Collects the names and attributes that a program binds."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.attributes: set[str] = set()

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                self.bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self.bound.add(name)
            case ast.alias(asname=str(name)):
                self.bound.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                self.attributes.add(name)
        self.generic_visit(node)


class _Plain(ast.NodeTransformer):
    """Removes names, annotations and docstrings, and sorts operands whose order does not matter."""

    def __init__(self, own: Set[str], attributes: Set[str]) -> None:
        self._own = own
        self._attributes = attributes

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, _Function | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        self.generic_visit(node)
        for field in ("id", "arg", "name", "asname"):
            if isinstance(name := getattr(node, field, None), str) and name in self._own:
                setattr(node, field, _OWN)
        if hasattr(node, "ctx"):
            node.ctx = ast.Load()
        match node:
            case ast.Attribute() if node.attr in self._attributes:
                node.attr = _OWN
            case ast.arg():
                node.annotation = None
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                node.returns = None
            case ast.AnnAssign(value=ast.expr() as value):
                return ast.copy_location(ast.Assign([node.target], value), node)
            case ast.Constant():
                node.kind = None
            case ast.JoinedStr():
                return ast.copy_location(ast.Constant("text"), node)
            case ast.Compare(ops=[operator]):
                _turn(node, operator)
            case ast.BinOp() if isinstance(node.op, _COMMUTES):
                node.left, node.right = sorted((node.left, node.right), key=ast.dump)
            case ast.BoolOp():
                node.values.sort(key=ast.dump)
            case ast.Call():
                node.keywords.sort(key=ast.dump)
        return node


def _turn(node: ast.Compare, operator: ast.cmpop) -> None:
    """Write `a > b` as `b < a`, and sort the sides of == and !=."""
    sides = [node.left, node.comparators[0]]
    if type(operator) in _FLIPPED:
        node.ops = [_FLIPPED[type(operator)]()]
        sides = sides[::-1]
    elif isinstance(operator, ast.Eq | ast.NotEq):
        sides.sort(key=ast.dump)
    node.left = sides[0]
    node.comparators = [sides[1]]


def _parts(node: ast.AST, parent: str) -> Iterator[tuple[str, int]]:
    """Yield the parts of a program with their lines. A statement that has a body counts without its body."""
    for child in ast.iter_child_nodes(node):
        yield from _parts(child, type(node).__name__)
    if isinstance(node, ast.stmt | ast.ExceptHandler):
        head = copy.copy(node)
        for body in _BODIES:
            if hasattr(head, body):
                setattr(head, body, [])
        yield f"{parent} {ast.dump(head)}", node.lineno
    elif isinstance(node, ast.expr) and _nodes(node) >= _LEAST_NODES:
        yield ast.dump(node), node.lineno


def _nodes(node: ast.AST) -> int:
    """Count the nodes of an expression, without operators and contexts."""
    return sum(isinstance(part, ast.expr | ast.arguments | ast.keyword | ast.comprehension) for part in ast.walk(node))
