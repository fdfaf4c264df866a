"""Constants of a cell that kernels may use: computed here from literals, and rewritten as the result."""

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from threeloops.inner.replay.allowlist.canonical import Canonical, named, path_of
from threeloops.inner.replay.allowlist.names import DTYPES, FLOAT_WORDS, MATH_FUNCTIONS, MATH_NUMBERS, RESERVED

__all__ = ["MAX_INTEGER", "Constant", "constants_of", "folded", "is_literal", "is_written"]

MAX_INTEGER = 1 << 64
_BITS = 64
_LONGEST = 500
"""Characters of one constant's value."""
_PYTHON = {"abs": abs, "min": min, "max": max, "int": int, "float": float, "bool": bool, "round": round}
_FUNCTIONS = {
    **{f"math.{name}": getattr(math, name) for name in MATH_FUNCTIONS},
    **_PYTHON,
    "triton.cdiv": lambda a, b: -(-a // b),
    "triton.next_power_of_2": lambda n: 1 << max(int(n) - 1, 0).bit_length(),
}
_OPERATORS: dict[type[ast.operator | ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_SIGNS = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_}


@dataclass(frozen=True)
class Constant:
    """One constant: its name, its value, the source text that defines it, and its line in the cell."""

    name: str
    value: Any
    text: str
    line: int

    def written(self) -> ast.stmt:
        """Return the statement that defines it, with the computed value in place of the expression."""
        node = ast.parse(f"{self.name} = {self.text}").body[0]
        node.lineno = self.line
        return node


class _Dtype(str):
    """A dtype of Triton by name."""


def constants_of(body: Sequence[ast.stmt], bound: Mapping[str, int], aliases: Mapping[str, str]) -> dict[str, Constant]:
    """Return the constants that top-level statements define, each perhaps made a tl.constexpr by a call or an
    annotation."""
    constants: dict[str, Constant] = {}
    values: dict[str, Any] = {}
    for node in body:
        for name, value, annotated in _definitions(node):
            expression = Canonical(aliases).visit(value)
            match expression:
                case ast.Call(func=function, args=[inner], keywords=[]) if path_of(function) == "tl.constexpr":
                    expression = inner
                    annotated = True
            try:
                worth = _worth(expression, values)
            except (ValueError, RecursionError):
                continue
            plain = _literal(worth)
            is_table = isinstance(worth, tuple | list) and not annotated  # Triton reads none but a tl.constexpr
            if name in RESERVED or is_table or len(plain) > _LONGEST:
                continue
            text = f"tl.constexpr({plain})" if annotated else plain
            constants[name] = Constant(name, worth, text, node.lineno)
            if bound[name] == 1:
                values[name] = worth
    return constants


def _definitions(node: ast.stmt) -> list[tuple[str, ast.expr, bool]]:
    """Return each name that an assignment binds, its value, and whether an annotation makes it a tl.constexpr."""
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=ast.expr() as value):
            return [(name, value, "constexpr" in ast.unparse(kind))]
        case ast.Assign(targets=targets, value=value):
            pairs: list[tuple[str, ast.expr, bool]] = []
            for target in targets:
                match target, value:
                    case ast.Name(id=name), _:
                        pairs.append((name, value, False))
                    case ast.Tuple() | ast.List(), ast.Tuple() | ast.List() if len(target.elts) == len(value.elts):
                        both = zip(target.elts, value.elts, strict=True)
                        pairs += [
                            (name.id, expression, False) for name, expression in both if isinstance(name, ast.Name)
                        ]
            return pairs
    return []


def _worth(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """Return the value of an expression of literals and constants: numbers, bools, None, a text, a dtype,
    math.log2(3.0).

    Raises ValueError for anything else.
    """
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return _small(value)
        case ast.Name(id=name) if name in constants:
            return constants[name]
        case ast.UnaryOp(op=kind, operand=operand) if type(kind) in _SIGNS:
            return _tried(_SIGNS[type(kind)], _number(operand, constants))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_number(operand, constants) for operand in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_number(operand, constants) for operand in values)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _worth(body if _number(test, constants) else orelse, constants)
        case ast.BinOp(left=left, op=kind, right=right) | ast.Compare(left=left, ops=[kind], comparators=[right]) if (
            type(kind) in _OPERATORS
        ):
            return _computed(type(kind), _number(left, constants), _number(right, constants))
        case ast.Tuple(elts=elements):
            return tuple(_worth(element, constants) for element in elements)
        case ast.List(elts=elements):
            return [_worth(element, constants) for element in elements]
        case ast.Attribute(value=ast.Name(id="math"), attr=name) if name in MATH_NUMBERS:
            return getattr(math, name)
        case ast.Attribute(value=ast.Name(id="tl"), attr=name) if name in DTYPES:
            return _Dtype(name)
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(word))], keywords=[]) if (
            word in FLOAT_WORDS
        ):
            return float(word)
        case ast.Call(func=function, args=given, keywords=[]) if path_of(function) in _FUNCTIONS:
            return _tried(_FUNCTIONS[path_of(function)], *[_number(argument, constants) for argument in given])
    raise ValueError("no literal")


def folded(node: ast.expr, constants: Mapping[str, Any]) -> ast.expr:
    """Return an expression of literals and known constants as a literal of its value, and any other unchanged."""
    try:
        text = _literal(_worth(node, constants))
    except ValueError:
        return node
    return named(text, node) if len(text) <= _LONGEST else node


def _is_worth(node: ast.expr) -> bool:
    try:
        _worth(node, {})
    except ValueError:
        return False
    return True


def is_literal(node: ast.expr) -> bool:
    """Return whether an expression holds its value itself: no name, no call, and no list, which could be changed."""
    kinds = (ast.Name, ast.Call, ast.List)
    dtype = path_of(node).startswith("tl.")
    return _is_worth(node) and (dtype or not any(isinstance(part, kinds) for part in ast.walk(node)))


def is_written(node: ast.stmt, names: Collection[str]) -> bool:
    """Return whether a statement is one that `Constant.written` makes, for one of these names."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names:
            match value:
                case ast.Call(func=made, args=[inner], keywords=[]) if path_of(made) == "tl.constexpr":
                    value = inner
            parts = list(ast.walk(value))
            dtypes = [part for part in parts if isinstance(part, ast.Attribute) and path_of(part).startswith("tl.")]
            return _is_worth(value) and len(dtypes) == sum(isinstance(part, ast.Name) for part in parts)
    return False


def _literal(value: Any) -> str:
    """Return the source text of a constant's value. It calls nothing, so no name of the cell can change it."""
    match value:
        case _Dtype():
            return f"tl.{value}"
        case float() if math.isinf(value):
            return "1e999" if value > 0 else "-1e999"
        case float() if math.isnan(value):
            return "(1e999 - 1e999)"
        case tuple():
            return "(" + "".join(f"{_literal(member)}, " for member in value) + ")"
        case list():
            return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)


def _number(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    value = _worth(node, constants)
    if not isinstance(value, int | float):
        raise ValueError("no number")
    return value


def _computed(kind: type[ast.operator | ast.cmpop], left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        grows = kind is ast.LShift or (kind is ast.Pow and abs(left) > 1)
        if grows and (right > _BITS or (kind is ast.LShift and left.bit_length() + right > _BITS + 1)):
            raise ValueError("an integer of more than 64 bits")
    return _tried(_OPERATORS[kind], left, right)


def _tried(function: Any, *given: Any) -> Any:
    try:
        value = function(*given)
    except (ArithmeticError, TypeError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, int | float):
        raise ValueError("no number")
    return _small(value)


def _small(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError("an integer of more than 64 bits")
    return value
