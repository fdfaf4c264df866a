"""Constants of a cell that kernels may use: computed here from literals, and rewritten as the result."""

import ast
import math
import operator
from typing import Any

from threeloops.inner.replay.allowlist.names import FLOAT_WORDS

__all__ = ["MAX_INTEGER", "defined", "is_constant", "written"]

MAX_INTEGER = 1 << 64
_NUMBERS = {"e": math.e, "pi": math.pi, "tau": math.tau, "inf": math.inf}
_FUNCTIONS = {name: getattr(math, name) for name in "sqrt log log2 log10 exp erf ceil floor".split()}
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_ANNOTATIONS = ("tl.constexpr", "int", "float", "bool")


def _worth(node: ast.expr) -> Any:
    """The value of an expression of literals: numbers, bools, None or a text, math.pi, math.log2(3.0), 1 / 3.

    Raises ValueError for anything else.
    """
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return _small(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _tried(_OPERATORS[type(kind)], _number(left), _number(right))
        case ast.Attribute(value=ast.Name(id="math"), attr=name) if name in _NUMBERS:
            return _NUMBERS[name]
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(word))], keywords=[]) if (
            word in FLOAT_WORDS
        ):
            return float(word)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=[given], keywords=[]) if (
            name in _FUNCTIONS
        ):
            return _tried(_FUNCTIONS[name], _number(given))
    raise ValueError("no literal")


def is_constant(node: ast.expr) -> bool:
    try:
        _worth(node)
    except ValueError:
        return False
    return True


def defined(node: ast.stmt) -> tuple[str, ...]:
    """The name that a top-level statement binds to a constant, or to tl.constexpr of one."""
    parts = _parts(node)
    return (parts[0],) if parts is not None and is_constant(parts[1]) else ()


def written(node: ast.stmt) -> ast.stmt:
    """Such a statement with the computed number in place of the expression."""
    parts = _parts(node)
    assert parts is not None
    name, value, is_constexpr = parts
    literal = _literal(_worth(value))
    text = f"tl.constexpr({literal})" if is_constexpr else literal
    return ast.copy_location(ast.parse(f"{name} = {text}").body[0], node)


def _parts(node: ast.stmt) -> tuple[str, ast.expr, bool] | None:
    """Name, value, and whether it is made a tl.constexpr by call or annotation."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            annotated = False
        case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=ast.expr() as value):
            if ast.unparse(kind) not in _ANNOTATIONS:
                return None
            annotated = ast.unparse(kind) == "tl.constexpr"
        case _:
            return None
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="constexpr"), args=[inner], keywords=[]):
            return name, inner, True
    return name, value, annotated


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _number(node: ast.expr) -> Any:
    value = _worth(node)
    if not isinstance(value, int | float):
        raise ValueError("no number")
    return value


def _tried(function: Any, *given: Any) -> Any:
    try:
        return _small(function(*given))
    except (ArithmeticError, TypeError) as error:
        raise ValueError(str(error)) from None


def _small(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError("an integer of more than 64 bits")
    return value
