"""Expressions of Triton with operands of every kind, and what the interpreter and the compiler make of them.

Each expression becomes one line of a kernel. The interpreter runs it, and notes the dtype and the value. The same lines
are compiled with an assertion of that dtype, and the value is read from the code where the compiler folds constants.
On a GPU the lines run, with blocks that are loaded, so that nothing is folded.
`TRITON_INTERPRET=1 python typed_expressions.py FOLDER` prints what the interpreter makes of them, as JSON.
"""

import importlib.util
import itertools
import json
import re
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threeloops.inner.codegen import inspect
from threeloops.inner.interpreter.repairs import values_of
from threeloops.inner.interpreter.statements import NAMES

__all__ = ["EXPRESSIONS", "Result", "compiled", "folded", "interpreted", "on_gpu"]

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


EXPRESSIONS = dict(enumerate(_made()))
ARGUMENTS: dict[str, Any] = {"n": 3, "big": 1 << 40, "s": 2.5, "flag": True, "C": 4, "D": 2.5}


@dataclass(frozen=True)
class Result:
    dtype: str
    values: list[Any]


def kernel(
    name: str, numbers: Iterable[int], folder: Path, dtypes: dict[int, str] | None = None, *, loaded: bool = False
) -> Any:
    """A kernel with a line for each expression: it notes the results, or with `dtypes` asserts these and stores.

    The result of the k-th expression goes to elements 2 k and 2 k + 1. Blocks are constants, or `loaded`.
    """
    pointers = "" if dtypes is None else "".join(f"p_{each}, c_{each}, " for each in DTYPES[1:])
    lines = ["import triton", "import triton.language as tl", "", "", "@triton.jit"]
    lines += [f"def {name}({pointers}n, big, s, flag, C: tl.constexpr, D: tl.constexpr):", "    for i in range(2, 3):"]
    for place, number in enumerate(numbers):
        expression = EXPRESSIONS[number]
        if dtypes is None:
            lines += ["        try:", f"            note({number}, {expression})"]
            lines += ["        except Exception as error:", f"            errors[{number}] = error"]
            continue
        bit = dtypes[number] == "int1"
        lines.append(f"        r{number} = {_BLOCK.sub(_load, expression) if loaded else expression}")
        lines.append(f"        tl.static_assert(r{number}.dtype == tl.{dtypes[number]})")
        where = f"p_{'int8' if bit else dtypes[number]} + {2 * place}" + " + tl.arange(0, 2)" * ("(2,)" in expression)
        lines.append(f"        tl.store({where}, r{number}{'.to(tl.int8)' * bit})")
    (folder / f"{name}.py").write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_BLOCK = re.compile(r"tl\.full\(\(2,\), (float\('nan'\)|[^,]+), tl\.(\w+)\)")
_NUMBERS = list(dict.fromkeys(number for text in EXPRESSIONS.values() for number, _ in _BLOCK.findall(text)))


def _load(block: re.Match[str]) -> str:
    """The same block, from the table of its dtype's numbers."""
    number, dtype = block.groups()
    table = f"c_{'int8' if dtype == 'int1' else dtype}"
    load = f"tl.load({table} + {2 * _NUMBERS.index(number)} + tl.arange(0, 2))"
    return f"{load}.to(tl.int1)" if dtype == "int1" else load


def on_gpu(numbers: list[int], dtypes: dict[int, str], folder: Path, name: str) -> dict[int, list[Any]]:
    """The values that a GPU computes, by number."""
    module = kernel(name, numbers, folder, dtypes, loaded=True)
    pointers = {}
    for each in DTYPES[1:]:
        dtype = getattr(torch, each)
        numbers_of = [eval(number) for number in _NUMBERS]
        fitting = [x if dtype.is_floating_point else 0 if x != x else int(x) for x in numbers_of]
        table = torch.tensor(fitting, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
        pointers[f"c_{each}"] = table.to(dtype).repeat_interleave(2).cuda()
        pointers[f"p_{each}"] = torch.zeros(2 * len(numbers), dtype=dtype, device="cuda")
    getattr(module, name)[(1,)](**pointers, **ARGUMENTS)
    found = {each: pointers[f"p_{each}"].tolist() for each in DTYPES[1:]}
    values = {}
    for place, number in enumerate(numbers):
        stored = found["int8" if dtypes[number] == "int1" else dtypes[number]]
        values[number] = stored[2 * place : 2 * place + (2 if "(2,)" in EXPRESSIONS[number] else 1)]
    return values


def interpreted(folder: Path) -> tuple[dict[int, Result], dict[int, Exception]]:
    """Dtype and value of each expression in the interpreter, and the errors of those that it refuses."""
    results, errors = {}, {}

    def note(number: int, value: Any) -> None:
        result = NAMES["threeloops_assigned"](value)
        dtype = _LONG.get(str(result.dtype), str(result.dtype))
        results[number] = Result(dtype, values_of(result.handle).ravel().tolist())

    module = kernel("interpreted_expressions", EXPRESSIONS, folder)
    module.note, module.errors = note, errors
    module.interpreted_expressions[(1,)](**ARGUMENTS)
    return results, errors


def compiled(numbers: Iterable[int], dtypes: dict[int, str], folder: Path, name: str = "compiled_expressions") -> str:
    """The code that the compiler makes of these expressions. Raises CompileError, also for another dtype."""
    module = kernel(name, numbers, folder, dtypes)
    pointers = {f"{kind}_{each}": torch.zeros(4, dtype=getattr(torch, each)) for each in DTYPES[1:] for kind in "pc"}
    (code,) = inspect(lambda: getattr(module, name)[(1,)](**pointers, **ARGUMENTS), "sm_90")
    return code.ttgir


def folded(code: str, numbers: list[int]) -> dict[int, float | int]:
    """The values that the compiler has computed itself, by number."""
    constants = {}
    for found in _CONSTANT.finditer(code):
        value, dtype = found[2] or found[4] or found[6], found[3] or found[5] or "i1"
        constants[found[1]] = _number(value, dtype)
    stored = re.findall(r"tt\.store %[\w\-#]+, (%[\w\-#]+)", code)
    return {number: constants[name] for number, name in zip(numbers, stored, strict=True) if name in constants}


_LONG = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
_CONSTANT = re.compile(
    r"(%[\w\-]+) = arith\.constant (?:dense<([^>]*)> : tensor<(?:\d+x)*([a-z]+\d+)[,>]|(\S+) : (\w+)|(true|false))"
)
_BITS = {"f16": ("<H", "<e"), "f32": ("<I", "<f"), "f64": ("<Q", "<d")}


def _number(text: str, dtype: str) -> float | int:
    """A constant as MLIR prints it; NaN and infinities are bit patterns."""
    if text in ("true", "false"):
        return int(text == "true")
    if dtype.startswith("i"):
        return int(text)
    if text.startswith("0x"):
        bits = int(text, 16) << 16 * (dtype == "bf16")
        pattern, number = _BITS["f32" if dtype == "bf16" else dtype]
        return float(struct.unpack(number, struct.pack(pattern, bits))[0])
    return float(np.float32(text)) if dtype == "f32" else float(text)


if __name__ == "__main__":
    import threeloops.inner.meter  # noqa: F401 (switches on the interpreter, with its repairs)

    results, _ = interpreted(Path(sys.argv[1]))
    print(json.dumps({number: (result.dtype, result.values) for number, result in results.items()}))
