"""The statements of a kernel as the compiler reads them: which numbers are tensors, and what a loop carries.

`Transformer` rewrites a kernel's source to call the functions here by the `NAMES` that the interpreter gives it.
"""

import ast
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from threeloops.inner.interpreter.stack import kernel_line

__all__ = ["NAMES", "Transformer", "assigned", "loop", "scalar"]


def scalar(value: Any, dtype: Any) -> Any:
    return tl.core.tensor(
        interpreter.TensorHandle(np.array([value], dtype=interpreter._get_np_dtype(dtype)), dtype), dtype
    )


def loop(first: Any, second: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """Stand for `range` and `tl.range` in a kernel. The index is a tensor as wide as the widest bound, at least int32.

    Refuses loops that behave differently when compiled: a compiled loop counts upwards unless its step is a negative
    constant, and it compares unsigned bounds as signed numbers.
    """
    if isinstance(step, tl.core.tensor) and (step.handle.data <= 0).any():
        raise ValueError(f"range with a step of {step}: a step that is not a constant must be at least 1")
    for each in (first, second):
        if (
            isinstance(each, tl.core.tensor)
            and (each.handle.data > np.iinfo(f"i{each.handle.data.itemsize}").max).any()
        ):
            raise ValueError(f"range with a bound of {each}: a loop compares {each.dtype} as a signed integer")
    bounds = [each.value if isinstance(each, tl.constexpr) else each for each in (first, second, step)]
    bounds = [0, bounds[0], bounds[2]] if second is None else bounds
    semantic, dtype = interpreter.interpreter_semantic, tl.int32
    for each in bounds:
        dtype = semantic.integer_promote_impl(dtype, semantic.to_tensor(each).dtype)
    return (scalar(each, dtype) for each in range(*bounds))


def assigned(value: Any) -> Any:
    """Make a number, or each number of a tuple, the tensor that a compiled kernel's variable holds."""
    if isinstance(value, tl.core.tensor):
        return value
    if type(value) in (tuple, list):
        return type(value)(map(assigned, value))
    return interpreter.interpreter_semantic.to_tensor(value, False)


def _logical(is_and: bool, *values: Callable[[], Any]) -> Any:
    """Compute `x and y and …` or `x or y or …`.

    As when compiled, a number decides or does not count, all tensors are computed, and together they make a boolean.
    """
    tensors: list[Any] = []
    value = None
    for each in values:
        value = each()
        if isinstance(value, tl.core.tensor):
            tensors.append(value)
        elif bool(value) is not is_and:
            return value
    if not tensors:
        return value
    combine = tl.core.tensor.logical_and if is_and else tl.core.tensor.logical_or
    return functools.reduce(lambda right, left: combine(left, right), reversed(tensors))


def _negated(value: Any) -> Any:
    """Compute `not value`, which is a tensor for a tensor."""
    return value.__not__() if isinstance(value, tl.core.tensor) else not value


def _chosen(condition: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Compute `first if condition else second`. If the condition is a tensor, so is the result."""
    chosen = first() if condition else second()
    return assigned(chosen) if isinstance(condition, tl.core.tensor) else chosen


def _called(function: Callable[..., Any], *values: Any) -> Any:
    """Call `min` or `max`, which are functions of `tl` in a compiled kernel."""
    replacement = {min: tl.minimum, max: tl.maximum}.get(function)
    is_of_tensors = any(isinstance(each, tl.core.tensor) for each in values)
    return functools.reduce(replacement, values) if replacement and is_of_tensors else function(*values)


def _returned(value: Any) -> Any:
    """Return one of several results of a function. Refuses numbers: when compiled, they may become tensors or not."""
    for each in value if type(value) in (tuple, list) else (value,):
        if type(each) in (bool, int, float):
            raise ValueError(
                f"return {value}, in a function with several returns: assign the number to a variable, and return that"
            )
    return value


class Transformer(ast.NodeTransformer):
    """Rewrite a kernel to behave as if compiled: numbers become tensors where they do then (if assigned, as the index
    of a loop, chosen by a tensor), `and` and `or` return booleans, and a loop keeps the types of variables, and leaves
    its index and what a step adds without a value."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        returns = [each for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
        for each in returns if len(returns) > 1 else ():
            assert each.value is not None
            each.value = _call("threeloops_returned", each.value)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _call("threeloops_negated", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        arguments = [node.test, _later(node.body), _later(node.orelse)]
        return ast.copy_location(ast.Call(ast.Name("threeloops_chosen", ast.Load()), arguments, []), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and not node.keywords:
            called = ast.Call(ast.Name("threeloops_called", ast.Load()), [node.func, *node.args], [])
            return ast.copy_location(called, node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if len(node.targets) > 1:
            raise ValueError("Multiple assignments are not supported")
        self.generic_visit(node)
        node.value = _call("threeloops_assigned", node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """`x += y` is `x = x + y`, with Python numbers as well."""
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        read = ast.Name(node.target.id, ast.Load())
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], _call("threeloops_assigned", value)), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        if node.value is not None and "constexpr" not in ast.unparse(node.annotation):
            node.value = _call("threeloops_assigned", node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        values = [_later(each) for each in node.values]
        arguments = [ast.Constant(isinstance(node.op, ast.And)), *values]
        return ast.copy_location(ast.Call(ast.Name("threeloops_logical", ast.Load()), arguments, []), node)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        iterator = "" if called is None else ast.unparse(called).split(".")[-1]
        if isinstance(called, ast.Name) and called.id == "range":
            called.id = "threeloops_range"
        statements = self._keeping_types(node) if iterator == "range" else [self._inside(node)]
        if iterator != "static_range" and isinstance(node.target, ast.Name):
            statements += _statements(_FORGET.format(name=node.target.id), node)
        return statements

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        return self._keeping_types(node)

    def _keeping_types(self, node: ast.For | ast.While) -> list[ast.stmt]:
        """A compiled loop carries the variables that have a value before it, and each keeps its type. What a step
        assigns besides has no value after the step."""
        names, types = _names_assigned(node.body), f"threeloops_types_{node.lineno}"
        self._inside(node)
        for name in names:
            node.body += _statements(_KEEP.format(name=name, types=types), node)
        before = [statement for name in names for statement in _statements(_NOTE.format(name=name, types=types), node)]
        return [*_statements(f"{types} = {{}}", node), *before, node]

    def _inside(self, node: ast.For | ast.While) -> ast.stmt:
        self.generic_visit(node)
        return node


_FORGET = "{name} = 0\ndel {name}"
"""Assigned first, because `del` fails if the loop made no steps."""
_NOTE = "try: {types}['{name}'] = threeloops_type_of({name})\nexcept threeloops_no_value: pass"
_KEEP = "if '{name}' in {types}: threeloops_kept('{name}', {types}['{name}'], {name})\nelse:\n {name} = 0\n del {name}"


def _statements(code: str, place: ast.stmt) -> list[ast.stmt]:
    statements = ast.parse(code).body
    for node in [node for statement in statements for node in ast.walk(statement)]:
        ast.copy_location(node, place)
    return statements


def _names_assigned(body: list[ast.stmt]) -> list[str]:
    """Variables that these statements assign, the constants and indices of loops among them left out."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    indices = {
        target.id
        for node in nodes
        if isinstance(node, ast.For)
        for target in ast.walk(node.target)
        if isinstance(target, ast.Name)
    }
    constants = {
        ast.unparse(node.target)
        for node in nodes
        if isinstance(node, ast.AnnAssign) and "constexpr" in ast.unparse(node.annotation)
    }
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(assigned - indices - constants)


def _type_of(value: Any) -> Any:
    return value.type if isinstance(value, tl.core.tensor) else type(value)


def _kept(name: str, before: Any, value: Any) -> None:
    """Refuse a variable that a step of a loop leaves with another type than it had before the loop."""
    after = _type_of(value)
    if after != before:
        raise TypeError(
            f"{name} is {_words(before)} before the loop at {kernel_line()} and {_words(after)} after a step: a "
            "compiled loop keeps the type of every variable. Begin with the type that the loop computes, or convert "
            "the result"
        )


def _words(type_: Any) -> str:
    if not isinstance(type_, tl.dtype):
        return "a constant (an integer argument of 1 is one)" if type_ is int else "a constant"
    return f"{type_.scalar} of shape {[int(size) for size in type_.shape]}" if type_.is_block() else str(type_)


def _call(name: str, value: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [value], []), value)


def _later(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


NAMES: dict[str, Any] = {
    "threeloops_range": loop,
    "threeloops_assigned": assigned,
    "threeloops_logical": _logical,
    "threeloops_negated": _negated,
    "threeloops_chosen": _chosen,
    "threeloops_called": _called,
    "threeloops_returned": _returned,
    "threeloops_type_of": _type_of,
    "threeloops_kept": _kept,
    "threeloops_no_value": NameError,
}
"""What a rewritten kernel may call."""
