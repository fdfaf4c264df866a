"""Insert small faults into the text of an answer, one at a time.

The operators are the usual ones of mutation testing (Jia and Harman, "An Analysis and Survey of the Development of
Mutation Testing", 2011), and those that matter in numerical code: casts, guards, and arguments of calls.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

__all__ = ["Mutant", "mutants"]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "floor": "ceil", "ceil": "floor"}
_CASTS = {"to", "float", "double", "half", "bfloat16", "long", "int", "astype", "type", "contiguous", "clone", "detach"}
_LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_BUILTIN_CASTS = {"int", "float", "bool", "round", "abs", "tuple", "list", "sorted"}


@dataclass(frozen=True)
class Mutant:
    """`text` is the whole answer with one fault; `fault` says which, and is unique in its exercise.

    `place` is the line with the fault, as `ast.unparse` writes it. If a statement is left out, it is that statement.
    """

    exercise: str
    operator: str
    line: int
    fault: str
    text: str
    place: str


def mutants(exercise: str, answer: str) -> Iterator[Mutant]:
    """Yield every mutant of the answer of one exercise, in the order of its lines. Mutants with the same text count as
    one."""
    tree = ast.parse(answer)
    reference = ast.unparse(tree)
    seen = {reference}
    named = Counter[str]()
    for operator, path, changed in _changes(tree):
        mutant = copy.deepcopy(tree)
        before = _replace(mutant, path, changed)
        text = ast.unparse(ast.fix_missing_locations(mutant))
        if text in seen:
            continue
        seen.add(text)
        change = f"{_short(before)} → {_short(changed) if changed is not None else 'nothing'}"
        named[change] += 1
        fault = change if named[change] == 1 else f"{change} #{named[change]}"
        place = _place(reference.splitlines(), text.splitlines())
        yield Mutant(exercise, operator, getattr(before, "lineno", 0), fault, text + "\n", place)


_Path = tuple[tuple[str, int | None], ...]
_Change = tuple[str, _Path, ast.AST | None]


def _changes(tree: ast.AST) -> Iterator[_Change]:
    """Yield each change: the operator, the place, and the replacement. None removes a statement."""
    for node, path in _walk(tree, ()):
        for operator, changed in _faults(node):
            yield operator, path, changed


def _walk(node: ast.AST, path: _Path) -> Iterator[tuple[ast.AST, _Path]]:
    """Yield every node whose change would change the program's behaviour: no annotations, docstrings, decorators or
    error messages."""
    yield node, path
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Assert) and name == "msg"):
            continue
        if isinstance(value, ast.AST):
            yield from _walk(value, (*path, (name, None)))
        elif isinstance(value, list):
            for index, element in enumerate(value):
                if isinstance(element, ast.AST) and not _is_docstring(element):
                    yield from _walk(element, (*path, (name, index)))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _faults(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    match node:
        case ast.Compare(ops=[operator]):
            for other in _COMPARISONS.get(type(operator), ()):
                yield "comparison", ast.Compare(node.left, [other()], node.comparators)
        case ast.BoolOp(op=operator):
            opposite = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "comparison", ast.BoolOp(opposite, node.values)
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
            yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(operator)](), node.right)
        case ast.AugAssign(op=operator) if type(operator) in _ARITHMETIC:
            yield "arithmetic", ast.AugAssign(node.target, _ARITHMETIC[type(operator)](), node.value)
            yield "dropped statement", None
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield "arithmetic", node.operand
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield "constant", ast.Constant(value + 1)
            if value > 1:
                yield "constant", ast.Constant(value - 1)
        case ast.Constant(value=float() as value):
            yield "constant", ast.Constant(value * 2 if value else 1.0)
        case ast.If():
            if not node.orelse and all(isinstance(statement, _LEAVES) for statement in node.body):
                yield "guard", None
            yield "guard", ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.IfExp():
            yield "guard", node.body
            yield "guard", node.orelse
        case ast.Call():
            yield from _call_faults(node)
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "dropped statement", None
        case ast.Break():
            yield "dropped statement", ast.Pass()
        case ast.Continue():
            yield "dropped statement", ast.Pass()


def _call_faults(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Attribute) and name in _CASTS:
        yield "cast", node.func.value
    elif isinstance(node.func, ast.Name) and name in _BUILTIN_CASTS and len(node.args) == 1 and not node.keywords:
        yield "cast", node.args[0]
    if name in _CALLS:
        other = copy.deepcopy(node.func)
        if isinstance(other, ast.Attribute):
            other.attr = _CALLS[name]
        elif isinstance(other, ast.Name):
            other.id = _CALLS[name]
        yield "arithmetic", ast.Call(other, node.args, node.keywords)
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            yield "argument", ast.Call(node.func, node.args, node.keywords[:index] + node.keywords[index + 1 :])
    for index in range(len(node.args) - 1):
        swapped = [*node.args[:index], node.args[index + 1], node.args[index], *node.args[index + 2 :]]
        yield "argument", ast.Call(node.func, swapped, node.keywords)


def _replace(tree: ast.AST, path: _Path, changed: ast.AST | None) -> ast.AST:
    """Put `changed` at `path` in the tree, or `pass` for None. Returns the old node."""
    parent = tree
    for name, index in path[:-1]:
        child = getattr(parent, name)
        parent = child if index is None else child[index]
    name, index = path[-1]
    new = copy.deepcopy(changed) if changed is not None else ast.Pass()
    if index is None:
        before = getattr(parent, name)
        setattr(parent, name, new)
    else:
        before = getattr(parent, name)[index]
        getattr(parent, name)[index] = new
    return before


def _place(lines: list[str], mutated: list[str]) -> str:
    """Return the first line that differs: the mutated one, or the original if the mutant has `pass` there."""
    before, after = next((old, new) for old, new in zip_longest(lines, mutated, fillvalue="pass") if old != new)
    return before.strip() if after.strip() == "pass" else after.strip()


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 80 else text[:79] + "…"
