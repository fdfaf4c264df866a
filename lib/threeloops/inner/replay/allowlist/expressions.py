"""The expressions that an admitted kernel may use: its own names, numbers, `tl`, and calls of known functions."""

import ast
from collections.abc import Collection
from typing import NoReturn

from threeloops.inner.replay.allowlist.canonical import path_of
from threeloops.inner.replay.allowlist.constants import MAX_INTEGER
from threeloops.inner.replay.allowlist.names import (
    BUILTINS,
    FLOAT_WORDS,
    MATH_FUNCTIONS,
    MATH_NUMBERS,
    MEMBERS,
    RESERVED,
    TL,
    TL_FUNCTIONS,
    TL_MATH,
    TRITON,
)

__all__ = ["Expressions", "NotAdmitted", "WORDS", "text_of"]

_ALLOWED = (
    "a kernel may use its arguments and variables, numbers, tl and tl.math, triton.cdiv, if, for and while, the other "
    "@triton.jit functions of its cell, and constants that its cell defines from literals, as in HALF = "
    "tl.constexpr(0.5)"
)
_LOOP = "write a loop over tl.static_range"
_TOP = "define it at the top level of the cell, under @triton.jit"
_EXCEPTIONS = "Triton compiles no exceptions: write a mask, or tl.device_assert"
_GENERATORS = "Triton compiles no generators: return a value"
WORDS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lambda: ("a lambda", _TOP),
    ast.ListComp: (
        "a comprehension of more than one loop or with a condition", f"Triton compiles [f(x) for x in a_tuple]: {_LOOP}"
    ),
    ast.SetComp: ("a comprehension other than a list", _LOOP),
    ast.DictComp: ("a comprehension other than a list", _LOOP),
    ast.GeneratorExp: ("a comprehension other than a list", _LOOP),
    ast.JoinedStr: ("an f-string", "an f-string may only be the message of an assertion or of a print"),
    ast.NamedExpr: ("an assignment inside an expression (:=)", "assign on a line of its own"),
    ast.FunctionDef: ("a function inside a kernel", _TOP),
    ast.AsyncFunctionDef: ("a function inside a kernel", _TOP),
    ast.ClassDef: ("a class", "use variables and tuples"),
    ast.Import: ("an import", "import at the top level of the cell"),
    ast.ImportFrom: ("an import", "import at the top level of the cell"),
    ast.Global: ("global", "take the value as an argument, and return or store it"),
    ast.Nonlocal: ("nonlocal", "take the value as an argument, and return or store it"),
    ast.Try: ("try", _EXCEPTIONS),
    ast.Raise: ("raise", _EXCEPTIONS),
    ast.With: ("with", "Triton's context managers are not executed here: write the statements without it"),
    ast.Delete: ("del", "leave the variable as it is"),
    ast.Await: ("await", _GENERATORS),
    ast.Yield: ("yield", _GENERATORS),
    ast.YieldFrom: ("yield", _GENERATORS),
    ast.Starred: ("a starred value", "only the arguments of a call may be starred: write the elements one by one"),
    ast.Dict: ("a dict", "use one variable for each value, or a tuple"),
    ast.Set: ("a set", "use one variable for each value, or a tuple"),
    ast.Break: ("break", "Triton compiles no break: use while, and put its condition there"),
    ast.Continue: ("continue", "Triton compiles no continue: use if"),
    ast.Match: ("match", "use if and elif"),
    ast.AnnAssign: ("an annotation without a value", "assign a value on the same line"),
}  # fmt: skip
_INSTEAD = {
    "isinstance": "decide by a tl.constexpr argument",
    "hasattr": "decide by a tl.constexpr argument",
    "getattr": "write the attribute's name behind a dot",
    "print": "write print as a statement of its own",
}


class NotAdmitted(Exception):
    """A kernel that cannot be judged. The message names the construct, its line in the cell and the allowed forms."""

    def __init__(self, line: int, what: str, allowed: str = _ALLOWED) -> None:
        self.line = line
        super().__init__(f"line {line}: {what}; {allowed}")


class Expressions:
    """A checker of one kernel's expressions. `kernels` and `constants` are names of its cell, and `local` are its own.
    `uses` are the names of the cell that it uses."""

    def __init__(self, function: ast.FunctionDef, kernels: Collection[str], constants: Collection[str]) -> None:
        self.function = function
        self.kernels = kernels
        self.constants = constants
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
                self._expressions(*node.values, string=string)
            case ast.Compare():
                self._expressions(node.left, *node.comparators, string=True)
            case ast.IfExp():
                self.expression(node.test)
                self._expressions(node.body, node.orelse, string=string)
            case ast.Tuple() | ast.List():
                self._expressions(*node.elts, string=string)
            case ast.ListComp(generators=[ast.comprehension(target=ast.Name(), ifs=[], is_async=0)]):
                self._comprehension(node)
            case ast.Subscript():
                self._expressions(node.value, node.slice)
            case ast.Slice():
                self._expressions(*[part for part in (node.lower, node.upper, node.step) if part is not None])
            case _:
                self.refuse(node, *WORDS.get(type(node), (text_of(node), _ALLOWED)))

    def _comprehension(self, node: ast.ListComp) -> None:
        """Check [f(x) for x in a_tuple]. Its name is the kernel's own inside of it, and only there."""
        (loop,) = node.generators
        assert isinstance(loop.target, ast.Name)
        self.expression(loop.iter)
        outside = self.local
        self.own(loop.target.id, loop.target)
        self.local = outside | {loop.target.id}
        self.expression(node.elt)
        self.local = outside

    def own(self, name: str, node: ast.AST) -> None:
        """Check a name that the kernel binds."""
        if name in RESERVED:
            self.refuse(node, f"{name!r} as a name of its own", "that name is a module's: choose another")
        if name.startswith("__"):
            self.refuse(node, f"{name!r} as a name of its own", "names that begin with __ are Python's: choose another")

    def _expressions(self, *nodes: ast.expr, string: bool = False) -> None:
        for node in nodes:
            self.expression(node, string=string)

    def _constant(self, node: ast.Constant, string: bool) -> None:
        value = node.value
        if isinstance(value, str) and not string:
            self.refuse(
                node,
                f"the text {text_of(node)}",
                "a text may be compared, given to a function of tl, or named by x: tl.constexpr = 'text'",
            )
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
        if name in ("tl", "triton", "math") or name in BUILTINS:
            self.refuse(node, f"{name!r} as a value")
        self.refuse(node, f"the name {name!r}, which is not its own")

    def _attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.refuse(node, f"an assignment to {text_of(node)}", "assign to plain names")
        base = path_of(node.value)
        allowed = {"tl": TL, "tl.math": TL_MATH, "triton": TRITON, "math": MATH_FUNCTIONS | MATH_NUMBERS}.get(base)
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
        function = node.func
        string = True
        lends = False
        match function:
            case ast.Name(id=name) if name in self.kernels and name not in self.local:
                self.uses.add(name)
            case ast.Name(id=name) if name in BUILTINS and name not in self.local and name not in self.constants:
                string = False
                if name == "float" and [getattr(a, "value", 0) in FLOAT_WORDS for a in node.args] == [True]:
                    string = True
            case ast.Attribute():
                self._attribute(function)
                lends = function.attr in ("reduce", "associative_scan")
                called = {"tl": TL_FUNCTIONS, "math": MATH_FUNCTIONS}.get(path_of(function.value))
                if called is not None and function.attr not in called:
                    self.refuse(node, f"{text_of(function)} as a function", "a number or a dtype is not called")
            case ast.Name(id=name) if name in _INSTEAD and name not in self.local:
                self.refuse(node, f"a call of {name}", _INSTEAD[name])
            case _:
                functions = (
                    "a kernel calls functions of tl, methods of tensors and the @triton.jit functions of its own cell"
                )
                self.refuse(node, f"a call of {text_of(function)}", functions)
        for keyword in node.keywords:
            if keyword.arg is None:
                self.refuse(node, "**", "name each argument")
            if keyword.arg.startswith("_"):
                self.refuse(node, f"the argument {keyword.arg}", "arguments that begin with _ are the compiler's own")
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if isinstance(argument, ast.Starred):
                argument = argument.value
            if (
                lends
                and isinstance(argument, ast.Name)
                and argument.id in self.kernels
                and argument.id not in self.local
            ):
                self.uses.add(argument.id)
            else:
                self.expression(argument, string=string)


def text_of(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 60 else text[:59] + "…"
