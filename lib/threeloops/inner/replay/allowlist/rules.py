"""The rules for a kernel's syntax tree: numbers, tensors and `tl`, and no way to anything else.

They are a whitelist of node types, names and attributes. This is strict enough for the interpreter, in which a kernel
is plain Python that runs in the grader's process and sees the interpreter's own globals. A compiled kernel needs no
further rules.
"""

import ast
from collections.abc import Sequence

from threeloops.inner.replay.allowlist.canonical import TYPE, path_of, stored_names
from threeloops.inner.replay.allowlist.constants import is_literal
from threeloops.inner.replay.allowlist.expressions import WORDS, Expressions, NotAdmitted, text_of
from threeloops.inner.replay.allowlist.names import DTYPES

__all__ = ["NotAdmitted", "Rules", "without_docstring"]


class Rules(Expressions):
    """Checks one kernel: its signature and its statements."""

    def check(self) -> set[str]:
        """Return the kernels and constants that it uses. Raises NotAdmitted."""
        self.own(self.function.name, self.function)
        if self.function.name == "range":
            self.refuse(self.function, "'range' as its own name", "Triton's loops need that name: choose another")
        self._signature(self.function)
        for node in stored_names(self.function):
            self.own(node.id, node)
            self.local.add(node.id)
        self._block(without_docstring(self.function.body))
        return self.uses

    def _signature(self, function: ast.FunctionDef) -> None:
        given = function.args
        if given.vararg or given.kwarg or given.kwonlyargs:
            self.refuse(function, "*, *args or **kwargs", "Triton compiles none of them: name each argument, without *")
        if getattr(function, "type_params", None):
            self.refuse(function, "type parameters", "Triton reads no brackets after the name: remove them")
        if function.returns is not None:
            self.refuse(function, "an annotation of what it returns", "remove it")
        for argument in [*given.posonlyargs, *given.args]:
            self.own(argument.arg, argument)
            self.local.add(argument.arg)
            if argument.annotation is not None:
                self._annotation(argument.annotation)
        for default in given.defaults:
            if not is_literal(default):
                allowed = "a default is a number, a bool, None, a text, a dtype, a tuple of these or a constant's name"
                self.refuse(default, f"{text_of(default)} as a default", allowed)

    def _annotation(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and TYPE.fullmatch(node.value):
            return
        if path_of(node) not in {f"tl.{name}" for name in DTYPES | {"constexpr", "const"}}:
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
                self.expression(value, string=True)
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
                self.refuse(node, "a loop with else", "Triton compiles none: write the statements after the loop")
            case ast.Return():
                if node.value is not None:
                    self.expression(node.value, string=True)
            case ast.Expr(value=ast.Call()):
                self.expression(node.value)
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case _:
                no_effect = "it has no effect: remove it"
                kind = type(node.value if isinstance(node, ast.Expr) else node)
                self.refuse(node, *WORDS.get(kind, (f"the statement {text_of(node)!r}", no_effect)))

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
