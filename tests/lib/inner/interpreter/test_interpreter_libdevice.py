"""libdevice's functions in the interpreter, against Python's math module, which computes one number at a time."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from threeloops.inner.codegen import inspect
from threeloops.inner.meter import meter  # switches on the interpreter
from triton.language.extra import libdevice
from triton.language.extra.libdevice import rsqrt, tanh
from triton.runtime.errors import InterpreterError

ANY = [-2.5, -1.5, -0.75, -0.5, 0.0, 0.25, 0.5, 1.5, 2.5, 7.25]
POSITIVE = [1e-3, 0.25, 0.5, 1.0, 1.5, 2.0, 7.25, 100.0]
INSIDE = [-0.99, -0.5, 0.0, 0.25, 0.75]
ABOVE_1 = [1.0, 1.5, 7.25, 100.0]

ONE = {
    "abs": (abs, ANY), "acos": (math.acos, INSIDE), "acosh": (math.acosh, ABOVE_1), "asin": (math.asin, INSIDE),
    "asinh": (math.asinh, ANY), "atan": (math.atan, ANY), "atanh": (math.atanh, INSIDE),
    "cbrt": (lambda x: math.copysign(abs(x) ** (1 / 3), x), ANY), "ceil": (math.ceil, ANY), "cos": (math.cos, ANY),
    "cosh": (math.cosh, ANY), "cospi": (lambda x: math.cos(math.pi * x), [0.0, 0.25, 1.0, 2.25]),
    "erf": (math.erf, ANY), "erfc": (math.erfc, ANY), "exp": (math.exp, ANY), "exp10": (lambda x: 10.0**x, ANY),
    "exp2": (lambda x: 2.0**x, ANY), "expm1": (math.expm1, ANY), "floor": (math.floor, ANY),
    "lgamma": (math.lgamma, POSITIVE), "log": (math.log, POSITIVE),
    "log10": (math.log10, POSITIVE), "log1p": (math.log1p, POSITIVE), "log2": (math.log2, POSITIVE),
    "nearbyint": (round, ANY), "normcdf": (lambda x: math.erfc(-x / math.sqrt(2)) / 2, ANY),
    "rint": (round, ANY), "round": (lambda x: math.copysign(math.floor(abs(x) + 0.5), x), ANY),
    "rsqrt": (lambda x: 1 / math.sqrt(x), POSITIVE), "saturatef": (lambda x: min(max(x, 0.0), 1.0), ANY),
    "sin": (math.sin, ANY), "sinh": (math.sinh, ANY), "sinpi": (lambda x: math.sin(math.pi * x), [0.25, 0.5, 1.5]),
    "sqrt": (math.sqrt, POSITIVE), "tan": (math.tan, ANY), "tanh": (math.tanh, ANY), "trunc": (math.trunc, ANY),
    "fast_expf": (math.exp, ANY), "fast_sinf": (math.sin, ANY), "fast_logf": (math.log, POSITIVE),
    "rcp_rn": (lambda x: 1 / x, POSITIVE), "sqrt_rn": (math.sqrt, POSITIVE),
}  # fmt: skip
TWO = {
    "atan2": math.atan2, "copysign": math.copysign, "fmod": math.fmod, "hypot": math.hypot, "remainder": math.remainder,
    "pow": lambda x, y: abs(x) ** y, "fdim": lambda x, y: max(x - y, 0.0), "add_rn": lambda x, y: x + y,
    "mul_rn": lambda x, y: x * y, "div_rn": lambda x, y: x / y,
}  # fmt: skip


def kernel(body, tmp_path, name):
    """A kernel must stand in a file."""
    text = (
        "import triton, triton.language as tl\nfrom triton.language.extra import libdevice\n\n@triton.jit\n"
        f"def {name}(x, y, z, out, SIZE: tl.constexpr):\n    at = tl.arange(0, SIZE)\n    a = tl.load(x + at)\n"
        f"    b = tl.load(y + at)\n    c = tl.load(z + at)\n    tl.store(out + at, {body})\n"
    )
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    names = {}
    exec(compile(text, file, "exec"), names)
    return names[name]


def computed(body, tmp_path, name, *columns, dtype=torch.float32, result=None, device="cpu"):
    size = 1 << (len(columns[0]) - 1).bit_length()
    padded = [torch.tensor(each + [each[-1]] * (size - len(each)), dtype=dtype, device=device) for each in columns]
    padded += [padded[-1]] * (3 - len(padded))
    out = torch.zeros(size, dtype=result or dtype, device=device)
    kernel(body, tmp_path, name)[(1,)](*padded, out, SIZE=size)
    return out[: len(columns[0])].cpu()


def rounded(values, dtype):
    return torch.tensor(np.array(values, dtype=np.float64)).to(dtype)


@pytest.mark.parametrize("name", ONE)
def test_a_function_of_one_number(name, tmp_path):
    function, xs = ONE[name]
    got = computed(f"libdevice.{name}(a)", tmp_path, "one", xs)
    xs = torch.tensor(xs).double().tolist()
    torch.testing.assert_close(got, rounded([function(x) for x in xs], torch.float32), rtol=2e-7, atol=1e-45)


@pytest.mark.parametrize("name", TWO)
def test_a_function_of_two_numbers(name, tmp_path):
    xs, ys = [abs(x) + 0.125 for x in ANY] if name == "pow" else ANY, [1.5, -0.25, 3.0, 0.5, 2.0] * 2
    got = computed(f"libdevice.{name}(a, b)", tmp_path, "two", xs, ys)
    expected = rounded([TWO[name](x, y) for x, y in zip(xs, ys, strict=True)], torch.float32)
    torch.testing.assert_close(got, expected, rtol=2e-7, atol=1e-45)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_a_gpu_computes_the_same_function(name, tmp_path):
    """libdevice states 4 ulp at most for float32, and its fast functions are looser."""
    function, xs = ONE[name] if name in ONE else (TWO[name], ANY)
    columns = [[abs(x) + 0.125 for x in xs] if name == "pow" else xs]
    columns += [([1.5, -0.25] * 5)[: len(xs)]] * (name in TWO)
    body = f"libdevice.{name}({'a, b' if name in TWO else 'a'})"
    got = computed(body, tmp_path, "gpu", *columns, device="cuda")
    exact = [
        function(*numbers) for numbers in zip(*(torch.tensor(each).double().tolist() for each in columns), strict=True)
    ]
    rough = {"rtol": 1e-5, "atol": 1e-5} if name.startswith("fast_") else {"rtol": 5e-7, "atol": 1e-45}
    torch.testing.assert_close(got, rounded(exact, torch.float32), **rough)


def test_float64_and_integers_have_functions_of_their_own(tmp_path):
    got = computed("libdevice.exp(a)", tmp_path, "double", ANY, dtype=torch.float64)
    torch.testing.assert_close(got, rounded([math.exp(x) for x in ANY], torch.float64), rtol=1e-15, atol=0)
    whole = [1, 2, 255, -1, 1 << 20]
    bits = computed("libdevice.popc(a)", tmp_path, "bits", whole, dtype=torch.int32)
    assert bits.tolist() == [(x & 0xFFFFFFFF).bit_count() for x in whole]
    zeros = computed("libdevice.clz(a)", tmp_path, "zeros", whole, dtype=torch.int32)
    assert zeros.tolist() == [32 - (x & 0xFFFFFFFF).bit_length() for x in whole]


def test_bits_are_read_as_another_type(tmp_path):
    xs = [1.0, -2.5, 0.0, math.inf]
    for name, result in (("float_as_int", torch.int32), ("float_as_uint", torch.uint32)):
        got = computed(f"libdevice.{name}(a)", tmp_path, name, xs, result=result)
        assert torch.equal(got, torch.tensor(xs).view(result))
    for name, dtype, whole in (
        ("int_as_float", torch.int32, torch.float32), ("longlong_as_double", torch.int64, torch.float64),
    ):  # fmt: skip
        bits = torch.tensor(xs, dtype=whole).view(dtype).tolist()
        assert computed(f"libdevice.{name}(a)", tmp_path, name, bits, dtype=dtype, result=whole).tolist() == xs


def test_bits_read_as_a_float_are_no_operation_of_floats(tmp_path):
    with meter() as traffic:
        computed("libdevice.int_as_float(a)", tmp_path, "bits", [1, 2], dtype=torch.int32, result=torch.float32)
    assert traffic.total.total_flops == 0


def test_fma_rounds_once(tmp_path):
    x, z = [1 + 2.0**-12], [-1 - 2.0**-11]
    assert computed("libdevice.fma(a, b, c)", tmp_path, "fused", x, x, z).item() == 2.0**-24


def test_tests_of_numbers_are_masks(tmp_path):
    xs = [1.0, math.nan, math.inf, -math.inf]
    for name, expected in (("isnan", [0, 1, 0, 0]), ("isinf", [0, 0, 1, 1]), ("signbit", [0, 0, 0, 1])):
        assert (
            computed(f"libdevice.{name}(a).to(tl.int32)", tmp_path, name, xs, result=torch.int32).tolist() == expected
        )


def test_a_function_that_is_not_interpreted_is_refused_by_name_and_line(tmp_path):
    with pytest.raises(
        InterpreterError, match=r"tgammaf of libdevice \(line 10 of gamma\) is not interpreted; .*inspect"
    ):
        computed("libdevice.tgamma(a)", tmp_path, "gamma", POSITIVE)


def test_float16_is_refused_as_by_the_compiler(tmp_path):
    with pytest.raises(InterpreterError, match="exp of libdevice .*does not take fp16: convert"):
        computed("libdevice.exp(a)", tmp_path, "half", ANY, dtype=torch.float16)


@triton.jit
def by_name(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, rsqrt(tl.load(x + at)) + tanh(tl.load(x + at)) + libdevice.exp(tl.load(x + at)))


def test_a_function_that_is_imported_by_name_computes_and_compiles():
    x, out = torch.full((32,), 0.25), torch.zeros(32)
    with meter() as traffic:
        by_name[(1,)](x, out, SIZE=32)
    assert traffic.total.flops["special"] == 3 * 32
    assert out[0].item() == pytest.approx(2 + math.tanh(0.25) + math.exp(0.25), rel=1e-6)
    (code,) = inspect(lambda: by_name[(1,)](x, out, SIZE=32), "sm_90")
    assert "rsqrt" in code.ptx
