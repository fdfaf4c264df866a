"""Expressions of Triton with operands of every kind, and what the interpreter and the compiler make of them.

Each expression becomes one line of a kernel. The interpreter runs it, and notes the dtype and the value. The same lines
are compiled with an assertion of that dtype, and the value is read from the code where the compiler folds constants.
"""

import itertools
import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["EXPRESSIONS", "Result", "folded", "kernel_text"]

DTYPES = (
    "int1", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
INTEGERS, FLOATS = DTYPES[1:9], DTYPES[9:]
_LEFT, _RIGHT = 5, 3


def block(dtype: str, value: Any) -> str:
    """A constant block, which the compiler folds."""
    return f"tl.full((2,), {value}, tl.{dtype})"


def _made() -> list[str]:
    made = []
    for a, b in itertools.product(DTYPES, DTYPES):
        left, right = block(a, 1 if a == "int1" else _LEFT), block(b, 1 if b == "int1" else _RIGHT)
        made += [f"{left} + {right}", f"{left} * {right}", f"tl.where(tl.full((2,), 1, tl.int1), {left}, {right})"]
    for a in DTYPES[1:]:
        left, same = block(a, _LEFT), block(a, _RIGHT)
        for number in ("2", "-2", "300", "True", "1.5", "C", "D", "n", "big", "s", "flag", "i"):
            made += [f"{left} + {number}", f"{number} * {left}", f"{left} < {number}"]
        made += [f"{left} / {same}", f"-{left}", f"tl.maximum({left}, {same})", f"tl.minimum({left}, 2)"]
        made += [f"tl.sum({left}, 0)", f"tl.max({left}, 0)", f"tl.argmax({left}, 0)", f"tl.cumsum({left}, 0)"]
        made += [f"{left} == {same}", f"tl.abs({left})", f"tl.zeros_like({left})"]
    for a, b in itertools.product(INTEGERS, INTEGERS):
        left, right = block(a, 13), block(b, 3)
        made += [f"{left} // {right}", f"{left} % {right}", f"{left} >> {right}", f"{left} & {right}"]
    for a in ("int8", "int16", "int32", "int64"):
        for x, y in ((-13, 3), (13, -3), (-13, -3)):
            made += [f"{block(a, x)} // {block(a, y)}", f"{block(a, x)} % {block(a, y)}"]
        made += [f"{block(a, -13)} >> 2", f"{block(a, -13)} << 1", f"~{block(a, 6)}"]
    for a, b in itertools.product(DTYPES, DTYPES):
        made += [f"{block(a, 1 if a == 'int1' else 7)}.to(tl.{b})"]
    for a, b in itertools.product(FLOATS, INTEGERS):
        made += [f"{block(a, 2.75)}.to(tl.{b})"]
        made += [f"{block(a, -2.75)}.to(tl.{b})"] if b.startswith("int") else []
    for number in ("n", "big", "s", "flag", "i"):
        made += [f"{number} + {other}" for other in ("1", "1.5", "C", "D", "n", "big", "s", "i")]
        made += [f"{number}.to(tl.{b})" for b in ("int8", "int64", "float16", "bfloat16", "float64")]
        made += [f"tl.where({number} > 1, {number}, 0)", f"tl.broadcast_to({number}, (2,))"]
    for a in FLOATS:
        nan = block(a, "float('nan')")
        made += [f"tl.maximum({nan}, {block(a, 2)})", f"tl.minimum({block(a, 2)}, {nan})", f"{nan} == {nan}"]
    made += [f"{block('int32', 1)} if n > 2 else {block('int32', 2)}", "not flag", "n > 1 and n < 5", "min(n, 4)"]
    made += ["tl.cdiv(n, 2)", "n / 2", "n // 2", "n % 2", "-n", "s // 2.0", "s % 2.0", "s / n", "1 / n", "2.0 * n"]
    return list(dict.fromkeys(made))


EXPRESSIONS = _made()


@dataclass(frozen=True)
class Result:
    dtype: str
    value: np.ndarray


_SIGNATURE = "{notes}n, big, s, flag, C: tl.constexpr, D: tl.constexpr"


def kernel_text(name: str, expressions: list[tuple[int, str]], dtypes: dict[int, str] | None = None) -> str:
    """A kernel with a line for each numbered expression: interpreted, it notes the result; with `dtypes`, it asserts
    that the compiler finds the same, and stores the result."""
    pointers = "" if dtypes is None else "".join(f"p_{each}, " for each in DTYPES[1:])
    lines = ["import triton", "import triton.language as tl", "", "", "@triton.jit"]
    lines += [f"def {name}({_SIGNATURE.format(notes=pointers)}):", "    for i in range(2, 3):"]
    for number, expression in expressions:
        if dtypes is None:
            lines.append(f"        note({number}, lambda: {expression})")
            continue
        lines.append(f"        r{number} = {expression}")
        lines.append(f"        tl.static_assert(r{number}.dtype == tl.{dtypes[number]})")
        shown = f"r{number}.to(tl.int8)" if dtypes[number] == "int1" else f"r{number}"
        pointer = f"p_{'int8' if dtypes[number] == 'int1' else dtypes[number]}"
        where = f"{pointer} + tl.arange(0, 2)" if "tl.full" in expression or "(2,)" in expression else pointer
        lines.append(f"        tl.store({where}, {shown})")
    return "\n".join(lines) + "\n"
