"""What may stand in an expression of an admitted kernel: its own names, numbers, `tl`, and calls of known functions."""

import ast
from collections.abc import Collection
from typing import NoReturn

from threeloops.inner.replay.allowlist.constants import MAX_INTEGER
from threeloops.inner.replay.allowlist.names import BUILTINS, FLOAT_WORDS, MEMBERS, TL, TL_FUNCTIONS, TL_MATH, TRITON

__all__ = ["Expressions", "NotAdmitted", "WORDS", "text_of"]

_ALLOWED = (
    "a kernel may use its arguments and variables, numbers, tl and tl.math, triton.cdiv, if, for and while, the other "
    "@triton.jit functions of its cell, and constants that its cell defines from literals, as in HALF = "
    "tl.constexpr(0.5)"
)
WORDS: dict[type[ast.AST], str] = {
    ast.Lambda: "a lambda",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.JoinedStr: "an f-string",
    ast.NamedExpr: "an assignment inside an expression (:=)",
    ast.FunctionDef: "a function inside a kernel",
    ast.AsyncFunctionDef: "a function inside a kernel",
    ast.ClassDef: "a class",
    ast.Import: "an import",
    ast.ImportFrom: "an import",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.Try: "try",
    ast.With: "with",
    ast.Raise: "raise",
    ast.Delete: "del",
    ast.Assert: "assert (tl.device_assert and tl.static_assert are there)",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Starred: "a starred value",
    ast.Dict: "a dict",
    ast.Set: "a set",
    ast.Break: "break",
    ast.Continue: "continue",
    ast.Match: "match",
}


class NotAdmitted(Exception):
    """A kernel that cannot be judged. The message names the construct, its line in the cell and what is allowed."""

    def __init__(self, line: int, what: str, allowed: str = _ALLOWED) -> None:
        self.line = line
        super().__init__(f"line {line}: {what}; {allowed}")


class Expressions:
    """Checks expressions of one kernel. `kernels` and `constants` are names of its cell, `local` its own; `uses` are
    those of the cell that it uses."""

    def __init__(self, function: ast.FunctionDef, kernels: Collection[str], constants: Collection[str]) -> None:
        self.function, self.kernels, self.constants = function, kernels, constants
        self.uses: set[str] = set()
        self.local: set[str] = set()

    def refuse(self, node: ast.AST, what: str, allowed: str = _ALLOWED) -> NoReturn:
        raise NotAdmitted(getattr(node, "lineno", self.function.lineno), f"{self.function.name} uses {what}", allowed)

    def expression(self, node: ast.expr, *, string: bool = False) -> None:
        """Check one expression; `string`: a text may stand here."""
        match node:
            case ast.Constant():
                self._constant(node, string)
            case ast.Name():
                self._name(node)
            case ast.Attribute():
                self._attribute(node)
            case ast.Call():
                self._call(node)
            case ast.BinOp():
                self._expressions(node.left, node.right)
            case ast.UnaryOp():
                self.expression(node.operand)
            case ast.BoolOp():
                self._expressions(*node.values)
            case ast.Compare():
                self._expressions(node.left, *node.comparators, string=True)
            case ast.IfExp():
                self._expressions(node.test, node.body, node.orelse)
            case ast.Tuple() | ast.List():
                self._expressions(*node.elts)
            case ast.Subscript():
                self._expressions(node.value, node.slice)
            case ast.Slice():
                self._expressions(*[part for part in (node.lower, node.upper, node.step) if part is not None])
            case _:
                self.refuse(node, WORDS.get(type(node), text_of(node)))

    def _expressions(self, *nodes: ast.expr, string: bool = False) -> None:
        for node in nodes:
            self.expression(node, string=string)

    def _constant(self, node: ast.Constant, string: bool) -> None:
        value = node.value
        if isinstance(value, str) and not string:
            self.refuse(node, f"the text {text_of(node)}", "a text may only be an argument of a call, or be compared")
        if not (value is None or isinstance(value, bool | int | float | str)):
            self.refuse(node, f"the constant {text_of(node)}")
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            self.refuse(node, "an integer of more than 64 bits")

    def _name(self, node: ast.Name) -> None:
        name = node.id
        if name in self.local:
            return
        if name in self.constants or name in self.kernels:
            self.uses.add(name)
            if name in self.kernels:
                self.refuse(node, f"the kernel {name} as a value", "call it, or give it to tl.reduce")
            return
        if name in ("tl", "triton") or name in BUILTINS:
            self.refuse(node, f"{name!r} as a value")
        self.refuse(node, f"the name {name!r}, which is not its own")

    def _attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.refuse(node, f"an assignment to {text_of(node)}", "assign to plain names")
        base = text_of(node.value) if _is_path(node.value) else ""
        allowed = {"tl": TL, "tl.math": TL_MATH, "triton": TRITON}.get(base)
        if base == "tl" and node.attr == "math":
            self.refuse(node, "the module tl.math as a value")
        if allowed is not None:
            if node.attr not in allowed:
                self.refuse(
                    node, f"{base}.{node.attr}", f"of {base} a kernel may use functions that compute on tensors"
                )
            return
        self.expression(node.value)
        if node.attr not in MEMBERS:
            self.refuse(
                node, f"the attribute .{node.attr}", "of a tensor a kernel may use tl's own methods, as x.to(…)"
            )

    def _call(self, node: ast.Call) -> None:
        function, string, lends = node.func, True, False
        match function:
            case ast.Name(id=name) if name in self.kernels and name not in self.local:
                self.uses.add(name)
            case ast.Name(id=name) if name in BUILTINS and name not in self.local:
                string = False
                if name == "float" and [getattr(a, "value", 0) in FLOAT_WORDS for a in node.args] == [True]:
                    string = True
            case ast.Attribute():
                self._attribute(function)
                lends = function.attr in ("reduce", "associative_scan")
                if (
                    isinstance(function.value, ast.Name)
                    and function.value.id == "tl"
                    and function.attr not in TL_FUNCTIONS
                ):
                    self.refuse(node, f"{text_of(function)} as a function")
            case ast.Name(id="print"):
                self.refuse(node, "a call of print", "remove it: a kernel prints where it runs in a cell, and not here")
            case _:
                called = (
                    "a kernel calls functions of tl, methods of tensors and the @triton.jit functions of its own cell"
                )
                self.refuse(node, f"a call of {text_of(function)}", called)
        for keyword in node.keywords:
            if keyword.arg is None:
                self.refuse(node, "**", "name each argument")
            if keyword.arg.startswith("_"):
                self.refuse(node, f"the argument {keyword.arg}", "arguments that begin with _ are the compiler's own")
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if lends and isinstance(argument, ast.Name) and argument.id in self.kernels:
                self.uses.add(argument.id)
            else:
                self.expression(argument, string=string)


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def text_of(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 60 else text[:59] + "…"
