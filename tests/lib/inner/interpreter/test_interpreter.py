"""What kernels compute, bit for bit: on a CPU by the repaired interpreter, on a GPU by the code compiled for it."""

import math
import warnings

import numpy as np
import pytest
import torch
from threeloops.hardware import device
from threeloops.inner import interpreter
from threeloops.inner.interpreter.formats import BF16 as BF16_FORMAT
from threeloops.inner.interpreter.formats import multiply_add

INTERPRETED = interpreter.enable_without_gpu()

import triton
import triton.language as tl

DEVICE = device()
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled on this machine")
BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
FP8 = {E4M3: 448.0, E5M2: 57344.0}
BLOCK = 4096


@triton.jit
def convert(x, out, n, BLOCK: tl.constexpr, ROUNDING: tl.constexpr = None):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    tl.store(out + at, values.to(out.dtype.element_ty, fp_downcast_rounding=ROUNDING), mask=at < n)


@triton.jit
def unary(x, negative, magnitude, positive, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    tl.store(negative + at, -values, mask=at < n)
    tl.store(magnitude + at, tl.abs(values), mask=at < n)
    tl.store(positive + at, (values > 0).to(tl.int32), mask=at < n)


@triton.jit
def binary(x, y, out, n, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left, right = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n, other=1.0)
    if OPERATION == "+":
        result = left + right
    elif OPERATION == "-":
        result = left - right
    elif OPERATION == "*":
        result = left * right
    elif OPERATION == "/":
        result = left / right
    elif OPERATION == "fma":
        result = tl.fma(left, right, left)
    elif OPERATION == "minimum":
        result = tl.minimum(left, right)
    elif OPERATION == "maximum":
        result = tl.maximum(left, right)
    elif OPERATION == "where <=":
        result = tl.where(left <= right, left, right)
    elif OPERATION == "count !=":
        result = (left != right).to(left.dtype) + 1.5
    else:
        result = left * 0.1 + 3
    tl.store(out + at, result, mask=at < n)


@triton.jit
def error_function(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.erf(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def use_an_index_after_its_loop(out, n, KIND: tl.constexpr):
    i = 0
    last = i
    if KIND == "unrolled":
        for j in tl.static_range(5):
            last = j
        tl.store(out, j + last)
    elif KIND == "kept":
        for i in range(n):
            last = i
        for i in tl.range(n, n):
            last = i
        i = last
        tl.store(out, i)
    else:
        for i in range(n):
            last = i
        tl.store(out, i)


@triton.jit
def count_to(out, start, stop, step):
    for i in range(start, stop, step):
        tl.store(out + i, tl.load(out + i) + 1)


@triton.jit
def exponential(x, out):
    tl.store(out, tl.exp(tl.load(x)))


@triton.jit
def show(x):
    values = tl.load(x + tl.arange(0, 2))
    print(values)
    tl.device_print("values", values)


def launch(kernel, *tensors, **constants):
    n = tensors[0].numel()
    kernel[(triton.cdiv(n, BLOCK),)](*tensors, n, BLOCK=BLOCK, **constants)


def converted(x, dtype, **options):
    out = torch.zeros(x.shape, dtype=dtype, device=DEVICE)
    launch(convert, x.to(DEVICE), out, **options)
    return out.cpu()


def every(dtype):
    """All numbers of a 16 or 8 bit type."""
    bits, integers = (16, torch.int16) if dtype.itemsize == 2 else (8, torch.int8)
    return torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)).to(integers).view(dtype)


def random_bits(dtype, n, seed):
    generator = torch.Generator().manual_seed(seed)
    integers = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    bits = 8 * dtype.itemsize
    return torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (n,), generator=generator).to(integers).view(dtype)


def same(actual, expected):
    """Equal numbers; NaN where NaN is expected, whatever its payload; zeros of either sign."""
    return torch.equal(actual.double().nan_to_num(nan=math.pi), expected.double().nan_to_num(nan=math.pi))


def saturated(x, dtype):
    """What `cvt.rn.satfinite` makes of float32 numbers: torch's rounding, no infinity."""
    return x.float().clamp(-FP8[dtype], FP8[dtype]).to(dtype)


@pytest.mark.parametrize("target", [torch.float16, torch.float32, torch.float64])
def test_every_bf16_number_widens_or_narrows_as_in_torch(target):
    assert same(converted(every(BF16), target), every(BF16).to(target))


@pytest.mark.parametrize("target", [torch.float16, BF16, torch.float32])
@pytest.mark.parametrize("source", FP8)
def test_every_fp8_number_widens_exactly(source, target):
    assert same(converted(every(source), target), every(source).float().to(target))


@pytest.mark.parametrize("source", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("target", FP8)
def test_fp8_rounds_to_nearest_even_and_saturates(source, target):
    x = random_bits(torch.float32, 20_000, seed=1) if source == torch.float32 else every(source)
    assert same(converted(x, target).float(), saturated(x, target).float())


def test_float32_rounds_to_the_nearest_bf16_ties_to_even():
    ties = torch.arange(2**16, dtype=torch.int32) * 2**16 + 2**15
    near_ties = torch.cat([ties, ties - 1, ties + 1, random_bits(torch.float32, 20_000, seed=2).view(torch.int32)])
    x = near_ties.view(torch.float32)
    assert same(converted(x, BF16), x.to(BF16))


def test_float16_rounds_to_the_nearest_bf16():
    assert same(converted(every(torch.float16), BF16), every(torch.float16).to(BF16))


def test_rounding_toward_zero_drops_bits():
    x = random_bits(torch.float32, 20_000, seed=3)
    x = x[x.isfinite()]
    assert same(converted(x, BF16, ROUNDING="rtz"), ((x.view(torch.int32) >> 16) << 16).view(torch.float32))


def test_integers_become_the_nearest_bf16_and_back():
    x = torch.cat([torch.arange(-700, 700), torch.tensor([2**24, -(2**30), 2**31 - 1])]).to(torch.int32)
    assert same(converted(x, BF16), x.to(BF16))
    numbers = every(BF16)
    numbers = numbers[numbers.float().abs() < 2**31]
    assert torch.equal(converted(numbers, torch.int32), numbers.to(torch.int32))


@needs_interpreter
def test_an_integer_next_to_a_tie_is_rounded_once():
    """sm_90 has `cvt.rn.bf16.s32`; rounding to float32 first would lose the last bit and then break the tie down."""
    x = torch.tensor([(2**8 + 1) * 2**22 + 1, (2**8 + 1) * 2**22 - 1], dtype=torch.int32)
    assert converted(x, BF16).tolist() == [(2**8 + 2) * 2**22, 2**8 * 2**22]


def test_every_bf16_number_negated_measured_and_compared():
    x = every(BF16)
    results = [torch.zeros_like(x, device=DEVICE) for _ in range(2)]
    positive = torch.zeros(x.shape, dtype=torch.int32, device=DEVICE)
    launch(unary, x.to(DEVICE), *results, positive)
    assert same(results[0].cpu(), -x)
    assert same(results[1].cpu(), x.abs())
    assert torch.equal(positive.cpu(), (x > 0).int())


def fused(x, y, z):
    """Rounded once, by arithmetic that test_interpreter_formats holds against fractions."""
    with np.errstate(over="ignore"):
        exact = multiply_add(*(each.float().numpy() for each in (x, y, z)))
        return torch.from_numpy(
            BF16_FORMAT.decode(BF16_FORMAT.encode(exact)) if x.dtype == BF16 else exact.astype("f4")
        )


def number_of(choose, x, y):
    """`min.f32` and `max.f32`: of a number and a NaN, the number. torch.fmin returns a signalling NaN."""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, choose(x, y)))


BINARY = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "fma": lambda x, y: fused(x, y, x),
    "minimum": lambda x, y: number_of(torch.minimum, x, y),
    "maximum": lambda x, y: number_of(torch.maximum, x, y),
    "where <=": lambda x, y: torch.where(x <= y, x, y),
    "count !=": lambda x, y: (x != y).to(x.dtype) + 1.5,
    "constants": lambda x, y: x * 0.1 + 3,
}


@pytest.mark.parametrize("operation", BINARY)
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_arithmetic_rounds_to_the_type_of_its_operands(operation, dtype):
    """Random patterns: infinities, NaN and subnormal numbers among them. The constant of a bf16 product is bf16."""
    if dtype == torch.float32 and operation in ("/", "constants") and not INTERPRETED:
        pytest.skip("compiled division is approximate, and products are contracted")
    x, y = random_bits(dtype, 30_000, seed=4), random_bits(dtype, 30_000, seed=5)
    y[::3] = x[::3]
    out = torch.zeros_like(x, device=DEVICE)
    launch(binary, x.to(DEVICE), y.to(DEVICE), out, OPERATION=operation)
    expected = BINARY[operation](x, y)
    if operation == "constants" and dtype == BF16:
        expected = x * torch.tensor(0.1, dtype=BF16) + 3
    assert same(out.cpu(), expected)


def test_erf_is_that_of_the_c_library():
    x = torch.cat([torch.linspace(-6, 6, 5000), torch.tensor([0.0, math.inf, -math.inf])])
    out = torch.zeros_like(x, device=DEVICE)
    launch(error_function, x.to(DEVICE), out)
    expected = torch.tensor([math.erf(each) for each in x.tolist()])
    torch.testing.assert_close(out.cpu(), expected, rtol=0 if INTERPRETED else 1e-6, atol=0)


def test_tensors_are_loop_bounds():
    out = torch.zeros(10, dtype=torch.int32, device=DEVICE)
    count_to[(1,)](out, 1, 9, 3)
    assert out.tolist() == [0, 1, 0, 0, 1, 0, 0, 1, 0, 0]


@needs_interpreter
def test_the_index_of_a_loop_has_no_value_after_it_as_in_a_compiled_kernel():
    out = torch.zeros(1, dtype=torch.int32)
    for kind, value in (("unrolled", 8), ("kept", 6)):
        use_an_index_after_its_loop[(1,)](out, 7, KIND=kind)
        assert out.item() == value
    for steps in (7, 0):
        with pytest.raises(Exception, match="cannot access local variable 'i'"):
            use_an_index_after_its_loop[(1,)](out, steps, KIND="read")


def test_exp_of_bf16_is_refused_as_it_is_compiled():
    x = torch.zeros(1, dtype=BF16, device=DEVICE)
    with pytest.raises(Exception, match="Expected dtype"):
        exponential[(1,)](x, x)


@needs_interpreter
def test_printed_are_numbers_and_not_bit_patterns(capsys):
    show[(1,)](torch.tensor([1.5, -2.0], dtype=BF16))
    printed = capsys.readouterr().out
    assert printed.count("1.5") == 2 and printed.count("-2.") == 2


@needs_interpreter
def test_masked_lanes_warn_of_nothing():
    x = torch.full((4,), math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for operation in ("-", "/", "*"):
            launch(binary, x, torch.zeros(4) if operation == "*" else x, torch.zeros(4), OPERATION=operation)


@needs_interpreter
def test_other_fp8_formats_are_left_to_triton():
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

    handle = TensorHandle(every(E4M3).view(torch.uint8).numpy(), tl.float8e4b15)
    as_before = InterpreterBuilder.create_fp_to_fp(interpreter_builder, handle, tl.float16, None)
    assert (interpreter_builder.create_fp_to_fp(handle, tl.float16, None).data == as_before.data).all()


@triton.jit
def count_by(out, first, bound, step, UNSIGNED: tl.constexpr):
    low, high = (first.to(tl.uint32), bound.to(tl.uint32)) if UNSIGNED else (first, bound)
    for _ in range(low, high, step):
        tl.store(out, tl.load(out) + 1)


@needs_interpreter
@pytest.mark.parametrize(
    ("first", "bound", "step", "unsigned", "says"),
    [
        (5, 0, -1, False, "range with a step of .*-1.*: a step that is not a constant must be at least 1"),
        (0, 5, 0, False, "range with a step of .*0.*: a step that is not a constant must be at least 1"),
        (2**31 - 2, 2**31, 1, True, "range with a bound of .*2147483648.*: a loop compares uint32 as a signed integer"),
    ],
)
def test_a_loop_that_is_compiled_to_another_is_refused(first, bound, step, unsigned, says):
    out = torch.zeros(1, dtype=torch.int32)
    count_by[(1,)](out, 0, 6, 2, UNSIGNED=unsigned)
    assert out.item() == 3
    with pytest.raises(Exception, match=says):
        count_by[(1,)](out, first, bound, step, UNSIGNED=unsigned)


@triton.jit
def logic(out, n, absent: tl.constexpr):
    zero = 0
    tl.store(out, (n and 6) == 6)
    tl.store(out + 1, (zero or 5) == 1)
    tl.store(out + 2, n > 3 and n < 10 or n > 20)
    tl.store(out + 3, absent is not None and absent > 3)
    tl.store(out + 4, n > 10 and tl.atomic_add(out + 5, 1) > 0)


@needs_interpreter
def test_and_and_or_of_numbers_are_truths_as_in_a_compiled_kernel():
    out = torch.full((6,), -1, dtype=torch.int32)
    logic[(1,)](out, 7, absent=None)
    assert out.tolist() == [0, 0, 1, 0, 0, 0]  # the last is added to, because both sides are computed


LARGE = tl.constexpr(2.0**24)


@triton.jit
def chosen(out, n):
    zero, twice = 0, 2 * LARGE
    odd = zero == 1
    tl.store(out, (LARGE if zero == 0 else 0.0) + 1.0 == LARGE)
    tl.store(out + 1, min(twice, LARGE) + 1.0 == LARGE)
    tl.store(out + 2, max(n.to(tl.float32), LARGE, 5.0) + 1.0 == LARGE)
    tl.store(out + 3, (not odd) + (not odd) == 0)
    tl.store(out + 4, (odd or LARGE) + 1.0 == LARGE)
    tl.store(out + 5, (LARGE if LARGE > 1.0 else 0.0) + 1.0 == LARGE)


@needs_interpreter
def test_numbers_that_a_tensor_chooses_are_tensors_as_in_a_compiled_kernel():
    out = torch.full((6,), -1, dtype=torch.int32)
    chosen[(1,)](out, 7)
    assert out.tolist() == [1, 1, 1, 1, 0, 0]  # as a float32, the number absorbs 1; a compile-time number does not


@triton.jit
def one_of_two(n):
    if n > 3:
        return 5.0
    return 1.0


@triton.jit
def returning(out, n):
    tl.store(out, one_of_two(n))


@needs_interpreter
def test_a_function_that_returns_one_of_several_numbers_is_refused():
    if triton.__version__.startswith("3.6."):
        pytest.skip("this Triton always makes a returned number a tensor")
    with pytest.raises(Exception, match="return 5.0, in a function with several returns: assign the number"):
        returning[(1,)](torch.zeros(1), 7)
