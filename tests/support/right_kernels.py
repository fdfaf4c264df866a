"""Right kernels written in unusual ways: rewrites that keep a cell's meaning, and kernels with what they compute.

Each rewrite takes the text of a cell and gives one with the same kernels in another style. A small kernel gets `v`, a
tile of 64 values, and leaves its result in `y`.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

__all__ = ["REWRITES", "SMALL", "Small", "kernels_in", "meaning"]


def kernels_in(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(each) for each in node.decorator_list):
            yield node


def _by_tree(change: Callable[[ast.FunctionDef], None], above: str = "") -> Callable[[str], str]:
    """A rewrite that changes each kernel's tree in place."""

    def rewrite(cell: str) -> str:
        tree = ast.parse(cell)
        for kernel in kernels_in(tree):
            change(kernel)
        return above + ast.unparse(ast.fix_missing_locations(tree))

    return rewrite


def _with(above: str, pattern: str, by: str) -> Callable[[str], str]:
    """A rewrite that replaces a pattern in the text, under another import."""
    return lambda cell: above + "\n" + re.sub(pattern, by, cell)


def _names_of_functions(cell: str) -> str:
    names = sorted(set(re.findall(r"\btl\.(?!math\b)(\w+)", cell)))
    return f"from triton.language import {', '.join(f'{name} as its_{name}' for name in names)}\n" + re.sub(
        r"\btl\.(?!math\b)(\w+)", r"its_\1", cell
    )


def _annotate(text: str) -> Callable[[ast.FunctionDef], None]:
    def change(kernel: ast.FunctionDef) -> None:
        for argument in kernel.args.args:
            argument.annotation = argument.annotation or ast.parse(text, mode="eval").body
        kernel.returns = ast.Constant(None)

    return change


def _constexpr_as(text: str) -> Callable[[ast.FunctionDef], None]:
    def change(kernel: ast.FunctionDef) -> None:
        for argument in kernel.args.args:
            if argument.annotation is not None and ast.unparse(argument.annotation) == "tl.constexpr":
                argument.annotation = ast.parse(text, mode="eval").body

    return change


def _begin(text: str) -> Callable[[ast.FunctionDef], None]:
    def change(kernel: ast.FunctionDef) -> None:
        first = isinstance(kernel.body[0], ast.Expr) and isinstance(kernel.body[0].value, ast.Constant)
        kernel.body[first:first] = ast.parse(text.format(name=kernel.args.args[0].arg)).body

    return change


def _annotate_variables(kernel: ast.FunctionDef) -> None:
    class Annotated(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                return ast.AnnAssign(node.targets[0], ast.Constant("tl.tensor"), node.value, 1)
            return node

    Annotated().visit(kernel)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node


def _rename(new: list[str]) -> Callable[[ast.FunctionDef], None]:
    """Give a kernel's variables these names, if it does not use them otherwise."""

    def change(kernel: ast.FunctionDef) -> None:
        used = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name)}
        stores = [n.id for n in ast.walk(kernel) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        own = [name for name in dict.fromkeys(stores) if name not in {a.arg for a in kernel.args.args}]
        _Renamed(dict(zip(own, [name for name in new if name not in used], strict=False))).visit(kernel)

    return change


def _shadowed_constants(cell: str) -> str:
    names = sorted({a.arg for kernel in kernels_in(ast.parse(cell)) for a in kernel.args.args})
    return "\n".join(f"{name} = 7" for name in names) + "\n" + cell


def _numbers_as_constants(cell: str) -> str:
    """Every float of a kernel becomes a constant of the cell, computed from others."""
    tree, values = ast.parse(cell), []

    class Named(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.expr:
            if not isinstance(node.value, float):
                return node
            values.append(node.value)
            return ast.Name(f"NUMBER_{len(values)}", ast.Load())

    for kernel in kernels_in(tree):
        kernel.body = [Named().visit(statement) for statement in kernel.body]
    ast.fix_missing_locations(tree)
    above = "ONE = 2 ** 0\n" + "".join(
        f"NUMBER_{n}: float = tl.constexpr({v!r} * ONE)\n" for n, v in enumerate(values, 1)
    )
    return above + ast.unparse(tree)


BUILTINS = ["max", "min", "sum", "abs", "len", "int", "float", "bool", "list", "id", "input", "open", "print", "exec"]
GREEK = ["α", "β", "γ", "δ", "ε", "ζ", "η", "θ", "ι", "κ", "ñ", "ключ", "值"]

REWRITES: dict[str, Callable[[str], str]] = {
    "import triton.language as L": _with("import triton.language as L", r"\btl\.", "L."),
    "from triton import language as lang": _with("from triton import language as lang", r"\btl\.", "lang."),
    "import triton as tr": _with("import triton as tr, triton.language as tl", r"\btriton\.", "tr."),
    "triton.language.load": _with("import triton.language", r"\btl\.", "triton.language."),
    "from triton.language import load": _names_of_functions,
    "from triton.language import *": _with(
        "from triton.language import *\nfrom builtins import abs, max, min, range", r"\btl\.constexpr\b", "constexpr"
    ),
    "import triton.language.math as m": _with("import triton.language.math as m", r"\btl\.math\.", "m."),
    "L = tl": _with("L = tl", r"\btl\.", "L."),
    "f32 = tl.float32": _with("f32 = tl.float32", r"\btl\.float32\b", "f32"),
    "where = tl.where": _with("its_where = tl.where", r"\btl\.where\b", "its_where"),
    "@jit": _with("from triton import jit", r"@triton\.jit", "@jit"),
    "@triton.jit()": _with("", r"@triton\.jit\b", "@triton.jit()"),
    "@triton.jit(repr=…)": _with("", r"@triton\.jit\b", "@triton.jit(repr=lambda s: 'k', launch_metadata=None)"),
    "'tl.constexpr'": _by_tree(_constexpr_as("'tl.constexpr'")),
    "constexpr": _by_tree(_constexpr_as("constexpr"), "from triton.language import constexpr\n"),
    "tl.constexpr | int": _by_tree(_constexpr_as("tl.constexpr | int")),
    "from __future__ import annotations": _with("from __future__ import annotations", r"$^", ""),
    "x: torch.Tensor": _by_tree(_annotate("torch.Tensor")),
    "x: 'Tensor'": _by_tree(_annotate("'Tensor'")),
    "x: Float[Tensor, 'n']": _by_tree(_annotate("Float[Tensor, 'n']")),
    "annotated variables": _by_tree(_annotate_variables),
    "docstring and print": _by_tree(
        _begin("print('at', {name})\ntl.device_print('x', {name})\ntl.static_print({name})")
    ),
    "assert": _by_tree(_begin("assert 1 < 2, f'added {{{name}}}'\ntl.static_assert(True, f'added {{1 + 1}}')")),
    "builtins as names": _by_tree(_rename(BUILTINS)),
    "letters beyond ASCII": _by_tree(_rename(GREEK)),
    "constants named like arguments": _shadowed_constants,
    "numbers as constants": _numbers_as_constants,
}


def meaning(text: str, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """An admitted text's kernels by name, with its constants in place and without what a rewrite adds."""
    tree = ast.parse(text)
    constants = {
        node.targets[0].id: node.value.args[0] if isinstance(node.value, ast.Call) else node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }

    class Plain(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return constants[node.id] if node.id.startswith("NUMBER_") or node.id == "f32" else node

        def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
            return ast.Name("range", ast.Load()) if ast.unparse(node) == "tl.range" else self.generic_visit(node)

        def visit_Pass(self, node: ast.Pass) -> None:
            return None

        def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
            return None if "added {" in ast.unparse(node) else self.generic_visit(node)

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
            return node

    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            stores = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            own = dict.fromkeys(n.id for n in sorted(stores, key=lambda n: (n.lineno, n.col_offset)))
            arguments = {a.arg for a in node.args.args}
            numbered = {name: f"own_{k}" for k, name in enumerate(n for n in own if n not in arguments)}
            found[node.name] = ast.unparse(_Renamed(numbered).visit(Plain().visit(node)))
    return found


@dataclass(frozen=True)
class Small:
    """A kernel of 64 elements: `body` computes `y` from `v`; `expected` does the same with torch."""

    body: str
    expected: Callable[[torch.Tensor], torch.Tensor]
    above: str = ""
    signature: str = "x, out, n, BLOCK: tl.constexpr"
    jit: str = "@triton.jit"

    def cell(self) -> str:
        body = "\n    ".join(self.body.split("\n"))
        return f"""\
{self.above}
{self.jit}
def kernel({self.signature}):
    at = tl.arange(0, 64)
    v = tl.load(x + at, mask=at < n, other=0.0)
    {body}
    tl.store(out + at, y, mask=at < n)
"""


def _double(v: torch.Tensor) -> torch.Tensor:
    return v * 2


_HELPER = "@triton.jit\ndef {name}(a, b):\n    return {result}\n"

SMALL: dict[str, Small] = {
    "a parameter that hides a constant": Small("y = v * BLOCK", lambda v: v * 64, "BLOCK = 1024"),
    "a variable that hides a constant": Small("C = v\ny = C * 2", _double, "C = tl.constexpr(5.0)"),
    "a variable that hides a kernel": Small(
        "add = v\ny = add * 2", _double, _HELPER.format(name="add", result="a + b")
    ),
    "a kernel called max": Small("y = max(v, v)", _double, _HELPER.format(name="max", result="a + b")),
    "a kernel called print": Small(
        "y = v * 2\nprint(out + at, y)\ny = tl.load(out + at)",
        _double,
        "@triton.jit\ndef print(to, what):\n    tl.store(to, what)\n",
    ),
    "a constant of a power": Small("y = v * C", lambda v: v / 2**0.5, "C = tl.constexpr(1 / 2 ** 0.5)"),
    "constants of constants": Small("y = v * C", lambda v: v * 12, "A = 3\nB = A << 2\nC = tl.constexpr(B)"),
    "two constants at once": Small("y = v * A + B", lambda v: v * 2 + 1, "A, B = tl.constexpr(2), tl.constexpr(1)"),
    "one value for two constants": Small("y = v * A", _double, "A = B = tl.constexpr(2)"),
    "a constant of math": Small("y = v * C", lambda v: v * 2, "from math import log2\nC = tl.constexpr(log2(4.0))"),
    "a constant of numpy": Small("y = v * C", lambda v: v * torch.pi, "import numpy as np\nC = tl.constexpr(np.pi)"),
    "a constant by triton.cdiv": Small("y = v * C", _double, "C: tl.constexpr = triton.cdiv(10, 5)"),
    "a constant of max": Small("y = v * C", _double, "C = tl.constexpr(max(1, 2))"),
    "a constant of minus infinity": Small("y = tl.maximum(v, C)", lambda v: v, "C = tl.constexpr(float('-inf'))"),
    "a constant of hexadecimal digits": Small("y = v * C", lambda v: v * 16, "C = tl.constexpr(0x10)"),
    "a constant of digits in groups": Small("y = v * C", lambda v: v * 1000, "C = tl.constexpr(1_000)"),
    "a constant of an exponent": Small("y = v * C", lambda v: v * 1e-6, "C = tl.constexpr(1E-6)"),
    "a constant by comparison": Small("y = v * C", _double, "A = 3\nC = tl.constexpr(2 if A > 1 and A != 2 else 1)"),
    "a constant truth": Small("y = v * 2 if C else v", _double, "C = tl.constexpr(not False)"),
    "a constant text": Small("y = v * 2 if C == 'on' else v", _double, "C = tl.constexpr('on')"),
    "a constant tuple": Small("y = v * C[1]", _double, "C = tl.constexpr((1, 2))"),
    "a constant dtype": Small("y = v.to(C) * 2", _double, "C = tl.constexpr(tl.float32)"),
    "a dtype by another name": Small("y = v.to(f32) * 2", _double, "f32 = tl.float32"),
    "a constant's value": Small("y = v * C.value", _double, "C = tl.constexpr(2)"),
    "a typing annotation of a constant": Small("y = v * C", _double, "C: 'Final' = tl.constexpr(2)"),
    "math in a kernel": Small("y = v * math.sqrt(4.0) + math.pi", lambda v: v * 2 + torch.pi, "import math"),
    "math by another name": Small("y = v * m.log2(4)", _double, "import math as m"),
    "a default by name": Small(
        "y = v * k", _double, "TWO = tl.constexpr(2)", "x, out, n, BLOCK: tl.constexpr, k: tl.constexpr = TWO"
    ),
    "a default of -1": Small("y = v * k", lambda v: -v, signature="x, out, n, BLOCK: tl.constexpr, k=-1"),
    "a default of infinity": Small(
        "y = tl.minimum(v, k)", lambda v: v, signature="x, out, n, BLOCK: tl.constexpr, k=float('inf')"
    ),
    "a default dtype": Small(
        "y = v.to(k) * 2", _double, signature="x, out, n, BLOCK: tl.constexpr, k: tl.constexpr = tl.float32"
    ),
    "a default text": Small(
        "y = v * 2 if k == 'a' else v", _double, signature="x, out, n, BLOCK: tl.constexpr, k: tl.constexpr = 'a'"
    ),
    "a default of None": Small(
        "if k is None:\n    y = v * 2\nelse:\n    y = v",
        _double,
        signature="x, out, n, BLOCK: tl.constexpr, k: tl.constexpr = None",
    ),
    "types of arguments": Small(
        "y = v * 2", _double, signature="x: '*fp32', out: tl.pointer_type, n: int, BLOCK: 'tl.constexpr'"
    ),
    "specialization": Small(
        "y = v * 2", _double, jit="@triton.jit(do_not_specialize=('n',), noinline=False, debug=True)"
    ),
    "a tuned kernel": Small("y = v * 2", _double, "from triton import jit, heuristics", jit="@heuristics({})\n@jit"),
    "an annotated variable": Small("k: tl.constexpr = 2\ny: tl.float32 = v * k", _double),
    "a text in a variable": Small(
        "mode: tl.constexpr = 'a' if BLOCK > 1 else 'b'\ny = v * 2 if mode == 'a' else v", _double
    ),
    "a tuple taken apart": Small("pair = (v, 2)\na, b = pair\ny = a * b", _double),
    "variables exchanged": Small("a, b = v, v * 2\na, b = b, a\ny = a", _double),
    "a list": Small("parts = [v, v]\ny = parts[0] + parts[1]", _double),
    "a comprehension": Small("parts = [each * 2 for each in (v, v)]\ny = parts[0]", _double),
    "arguments starred": Small("pair = (v, v)\ny = add(*pair)", _double, _HELPER.format(name="add", result="a + b")),
    "a helper that returns early": Small(
        "y = pick(v, BLOCK)",
        _double,
        "@triton.jit\ndef pick(a, B: tl.constexpr):\n    if B > 1:\n        return a * 2\n    return a",
    ),
    "a helper that returns a tuple": Small(
        "a, b = both(v, v)\ny = a + b", _double, _HELPER.format(name="both", result="a, b")
    ),
    "a helper by another name": Small(
        "y = plus(v, v)", _double, _HELPER.format(name="add", result="a + b") + "plus = add"
    ),
    "a reduction by keyword": Small(
        "y = v * 0 + tl.reduce(v, axis=0, combine_fn=add)",
        lambda v: v * 0 + v.sum(),
        _HELPER.format(name="add", result="a + b"),
    ),
    "methods": Small(
        "y = v.to(tl.float32) * 0 + v.sum(0) + v.abs().max(axis=0)", lambda v: v * 0 + v.sum() + v.abs().max()
    ),
    "slices": Small("y = tl.reshape(v[:, None] * v[None, :], (4096,)).reshape(64, 64).sum(1)", lambda v: v * v.sum()),
    "a transposed view": Small("square = v[:, None] + v[None, :] * 0\ny = square.T.sum(0)", lambda v: v * 64),
    "loops": Small(
        "y = v * 0\nfor i in tl.static_range(2):\n    y += v\nfor i in tl.range(0, 2, num_stages=1):\n    y += v * 0\n"
        "i = 0\nwhile i < 2 and n > 0:\n    i += 1\n    y = y * 1",
        _double,
    ),
    "a hint for while": Small(
        "i = 0\ny = v\nwhile tl.condition(i < 1, disable_licm=True):\n    i += 1\n    y += v", _double
    ),
    "elif, not and or": Small(
        "if BLOCK < 1 or not BLOCK:\n    y = v\nelif BLOCK % 2 == 0:\n    y = v * 2\nelse:\n    y = v", _double
    ),
    "assignments of every operator": Small(
        "y = v * 8\ny += 1\ny -= 1\ny *= 1\ny /= 4\n"
        "k = 9\nk //= 2\nk %= 4\nk <<= 1\nk >>= 1\nk |= 1\nk &= 3\nk ^= 1\ny += k * 0",
        _double,
    ),
    "operators": Small("k = -(-2) + (+1) - (~0) - 2\ny = v * k", _double),
    "assertions and prints": Small(
        "assert BLOCK > 1, f'{BLOCK} is too small'\ntl.static_assert(BLOCK > 1, f'{BLOCK=}')\n"
        "tl.device_assert(at < 64, 'at')\nprint('v', v)\ntl.device_print('v', v, hex=True)\n"
        "tl.static_print(f'{BLOCK:>8}')\n'a bare text'\n...\npass\ny = v * 2",
        _double,
    ),
    "questions about dtypes": Small("y = v * 2 if v.dtype.is_fp32() and not v.dtype.is_int_signed() else v", _double),
    "the size of a pointer's elements": Small("y = v * (x.dtype.element_ty.primitive_bitwidth // 16)", _double),
}
