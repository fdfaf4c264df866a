"""The rules for a kernel's syntax tree: numbers, tensors and `tl`, and no way to anything else.

A whitelist of node types, names and attributes. It holds for the interpreter, where a kernel is plain Python that runs
in the grader's process and sees the interpreter's own globals, and a compiled kernel needs nothing beyond it.
"""

import ast
from collections.abc import Sequence

from threeloops.inner.replay.allowlist.constants import is_constant
from threeloops.inner.replay.allowlist.expressions import WORDS, Expressions, NotAdmitted, text_of
from threeloops.inner.replay.allowlist.names import DTYPES, RESERVED

__all__ = ["NotAdmitted", "Rules", "without_docstring"]


class Rules(Expressions):
    """Checks one kernel: its signature and its statements."""

    def check(self) -> set[str]:
        """The kernels and constants that it uses. Raises NotAdmitted."""
        if self.function.name in RESERVED or self.function.name.startswith("__"):
            self.refuse(self.function, f"{self.function.name!r} as its own name", "that name is taken: choose another")
        self._signature(self.function)
        for node in ast.walk(self.function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._binds(node.id, node)
        self._block(without_docstring(self.function.body))
        return self.uses

    def _binds(self, name: str, node: ast.AST) -> None:
        if name in RESERVED or name in self.kernels or name in self.constants or name.startswith("__"):
            self.refuse(node, f"{name!r} as a name of its own", "that name is taken: choose another")
        self.local.add(name)

    def _signature(self, function: ast.FunctionDef) -> None:
        given = function.args
        if given.vararg or given.kwarg or given.kwonlyargs:
            self.refuse(function, "*, *args or **kwargs", "a kernel names each of its arguments")
        if getattr(function, "type_params", None) or (function.returns is not None):
            self.refuse(function, "an annotation of what it returns", "annotate arguments only, as tl.constexpr")
        for argument in [*given.posonlyargs, *given.args]:
            self._binds(argument.arg, argument)
            if argument.annotation is not None:
                self._annotation(argument.annotation)
        for default in given.defaults:
            if not is_constant(default) or "math" in text_of(default):
                self.refuse(default, f"{text_of(default)} as a default", "a default is a number, a bool or None")

    def _annotation(self, node: ast.expr) -> None:
        known = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tl"
        if not (known and node.attr in DTYPES | {"constexpr"}):  # type: ignore[attr-defined]
            self.refuse(node, f"the annotation {text_of(node)}", "annotate with tl.constexpr, or not at all")

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._target(target)
                self.expression(node.value)
            case ast.AugAssign():
                self._target(node.target)
                self.expression(node.value)
            case ast.AnnAssign(value=ast.expr() as value):
                self._target(node.target)
                self._annotation(node.annotation)
                self.expression(value)
            case ast.If():
                self.expression(node.test)
                self._block(node.body)
                self._block(node.orelse)
            case ast.For(orelse=[]):
                self._target(node.target)
                self.expression(node.iter)
                self._block(node.body)
            case ast.While(orelse=[]):
                self.expression(node.test)
                self._block(node.body)
            case ast.For() | ast.While():
                self.refuse(node, "a loop with else")
            case ast.Return():
                if node.value is not None:
                    self.expression(node.value)
            case ast.Expr(value=ast.Call()):
                self.expression(node.value)
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case _:
                self.refuse(node, WORDS.get(type(node), f"the statement {text_of(node)!r}"))

    def _target(self, node: ast.expr) -> None:
        match node:
            case ast.Name():
                pass
            case ast.Tuple() | ast.List():
                for inner in node.elts:
                    self._target(inner)
            case _:
                self.refuse(node, f"an assignment to {text_of(node)}", "assign to plain names")


def without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return list(body)
