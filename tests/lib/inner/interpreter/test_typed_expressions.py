"""The interpreter computes with the types and the values of the compiled kernel."""

import inspect
import json
import math
import os
import subprocess
import sys

import pytest
import threeloops.inner.meter  # noqa: F401  (switches on the interpreter)
import torch
import triton
import triton.language as tl
import typed_expressions
from threeloops.inner.codegen import CompileError
from typed_expressions import EXPRESSIONS, compiled, folded, interpreted, on_gpu

_ONE_KERNEL = 400
"""Expressions."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("expressions")


@pytest.fixture(scope="module")
def ours(folder):
    return interpreted(folder)


def test_every_expression_has_the_dtype_and_the_value_of_the_compiled_code(ours, folder):
    results, _ = ours
    dtypes = {number: result.dtype for number, result in results.items()}
    wrong, known = {}, 0
    numbers = list(results)
    for first in range(0, len(numbers), _ONE_KERNEL):
        chunk = numbers[first : first + _ONE_KERNEL]
        code = compiled(chunk, dtypes, folder, f"compiled_{first}")  # fails for another dtype
        for number, value in folded(code, chunk).items():
            known += 1
            if not all(_same(mine, value, dtypes[number]) for mine in results[number].values):
                wrong[EXPRESSIONS[number]] = results[number].values, value
    assert not wrong
    assert len(results) >= 1500, "so that nothing is refused that was computed before"
    assert known >= 1200, "so that the compiler folds most of them"


def _same(mine, theirs, dtype):
    if "float" in dtype:
        return mine == theirs or (math.isnan(mine) and math.isnan(theirs))
    return (int(mine) - int(theirs)) % (2 if dtype == "int1" else 1 << int(dtype.strip("uint"))) == 0


def in_another_process(folder):
    """Where kernels are compiled for a GPU, another process interprets them."""
    environment = dict(os.environ, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    script = [sys.executable, typed_expressions.__file__, folder]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {int(number): result for number, result in json.loads(done.stdout).items()}


def test_another_process_interprets_them_alike(ours, folder):
    assert str(in_another_process(folder)) == str({n: [each.dtype, each.values] for n, each in ours[0].items()})


@pytest.mark.gpu
def test_every_expression_has_the_value_that_a_gpu_computes(folder):
    results = in_another_process(folder)
    dtypes = {number: dtype for number, (dtype, _) in results.items()}
    numbers, wrong = list(results), {}
    for first in range(0, len(numbers), _ONE_KERNEL):
        chunk = numbers[first : first + _ONE_KERNEL]
        for number, values in on_gpu(chunk, dtypes, folder, f"on_gpu_{first}").items():
            mine = results[number][1]
            if not all(_same(mine[place % len(mine)], value, dtypes[number]) for place, value in enumerate(values)):
                wrong[EXPRESSIONS[number]] = dtypes[number], mine, values
    assert not wrong


def test_another_dtype_would_be_noticed(ours, folder):
    results, _ = ours
    number = next(number for number, text in EXPRESSIONS.items() if text == "n + s")
    assert results[number].dtype == "float32"
    with pytest.raises(CompileError):
        compiled([number], {number: "int32"}, folder, "another_dtype")


def test_what_the_interpreter_refuses_does_not_compile(ours, folder):
    _, errors = ours
    assert errors
    for number in list(errors)[::6]:
        with pytest.raises(CompileError):
            compiled([number], {number: "float32"}, folder, f"refused_{number}")


@triton.jit
def convert(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


_INF, _NAN = math.inf, math.nan
_HIGHEST = 1 << 63


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("target", "below", "above", "nan"),
    [
        (torch.int32, -(1 << 31), (1 << 31) - 1, 0),
        (torch.uint32, 0, (1 << 32) - 1, 0),
        (torch.int16, -(1 << 15), (1 << 15) - 1, 0),
        (torch.uint16, 0, (1 << 16) - 1, 0),
        (torch.int8, 0, -1, 0),
        (torch.uint8, 0, 255, 0),
        (torch.int64, -_HIGHEST, _HIGHEST - 1, -_HIGHEST),
        (torch.uint64, 0, 2 * _HIGHEST - 1, _HIGHEST),
    ],
)
def test_floats_that_do_not_fit_an_integer_are_cut_off_as_by_ptx(source, target, below, above, nan, device):
    """PTX ISA, cvt: such numbers become the nearest integer, and NaN 0, or with float64 or 64 bits the highest bit.
    Integers of 8 bits are the lower half of 16, as the compiled code converts them."""
    x = torch.tensor([-_INF, _INF, _NAN, -2.75, 2.75, 0.0, -0.5, 100.0], dtype=source, device=device)
    out = torch.zeros(8, dtype=target, device=device)
    convert[(1,)](x, out, SIZE=8)
    signed = target.is_signed
    if source == torch.float64 and target.itemsize < 8:
        bits = 8 * max(target.itemsize, 2)
        nan = 0 if target.itemsize == 1 else (-1 if signed else 1) << (bits - 1)
    assert out.tolist() == [below, above, nan, -2 if signed else 0, 2, 0, 0, 100]


@triton.jit
def scale(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    factor, offset = 1.5, 2
    tl.store(out + at, tl.load(x + at) * factor + offset)


def test_numbers_of_a_tuple_are_tensors_when_they_are_assigned():
    """bfloat16 times a float32 tensor is a float32, and times a number a bfloat16."""
    x, out = torch.full((4,), 1.0078125, dtype=torch.bfloat16), torch.zeros(4)
    scale[(1,)](x, out, SIZE=4)
    assert out.tolist() == [1.0078125 * 1.5 + 2] * 4


@triton.jit
def multiply(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at) * tl.load(x + at))


def test_the_meter_alone_switches_on_the_repairs(tmp_path):
    """Triton's own interpreter multiplies bit patterns of bfloat16: 2.5e-29 instead of 2.25."""
    script = tmp_path / "script.py"
    script.write_text(
        "from threeloops.inner.meter import meter\nimport torch, triton, triton.language as tl\n"
        + inspect.getsource(multiply.fn)
        + "x = torch.full((4,), 1.5, dtype=torch.bfloat16)\nout = torch.zeros_like(x)\n"
        "with meter() as traffic:\n    multiply[(1,)](x, out, SIZE=4)\n"
        "print(out[0].item(), traffic.total.unique_bytes)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_INTERPRET")}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["2.25", "16"], done.stderr


def test_a_kernel_from_before_the_meter_is_refused_with_a_step_that_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, triton, triton.language as tl\n"
        + inspect.getsource(multiply.fn)
        + "from threeloops.inner.meter import meter\n"
        "with meter() as traffic:\n    multiply[(1,)](torch.ones(4), torch.ones(4), SIZE=4)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_INTERPRET")}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert "Import threeloops.inner.meter above the kernel" in done.stderr
