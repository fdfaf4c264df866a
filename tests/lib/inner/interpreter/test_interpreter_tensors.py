"""Matrix products, atomics and descriptors: by the repaired interpreter, or on a GPU by the code compiled for it."""

import itertools

import pytest
import torch
from threeloops.hardware import device
from threeloops.inner import interpreter

INTERPRETED = interpreter.enable_without_gpu()

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DEVICE = device()
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled on this machine")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@triton.jit
def matmul(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left, right = tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :])
    at = m[:, None] * N + n[None, :]
    accumulator = tl.load(out + at).to(ACC)
    tl.store(out + at, tl.dot(left, right, accumulator, input_precision=PRECISION, out_dtype=ACC))


@triton.jit
def batched(a, b, out, B: tl.constexpr, M: tl.constexpr):
    i, m, n = tl.arange(0, B)[:, None, None], tl.arange(0, M)[None, :, None], tl.arange(0, M)[None, None, :]
    at = i * M * M + m * M + n
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def scaled(a, a_scale, b, b_scale, out, A: tl.constexpr, B: tl.constexpr, PACKED: tl.constexpr):
    """(32, 64) @ (64, 32), one scale for 32 elements along K; b is fp4, two to a byte along K."""
    m, k, half, group = tl.arange(0, 32), tl.arange(0, 64), tl.arange(0, 64 // PACKED), tl.arange(0, 2)
    left, right = tl.load(a + m[:, None] * 64 + k[None, :]), tl.load(b + half[:, None] * 32 + m[None, :])
    at = m[:, None] * 2 + group[None, :]
    result = tl.dot_scaled(left, tl.load(a_scale + at), A, right, tl.load(b_scale + at), B)
    tl.store(out + m[:, None] * 32 + m[None, :], result)


@triton.jit
def scatter_add(out, before, where, x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    old = tl.atomic_add(out + tl.load(where + at, mask=at < n, other=0), tl.load(x + at, mask=at < n), mask=at < n)
    tl.store(before + at, old, mask=at < n)


@triton.jit
def first_chunk(x, out, total, n, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for chunk in tl.static_range(CHUNKS):
        chosen = (at < n) & (chunk == 0)
        tl.store(out + at, tl.load(x + at, mask=chosen, other=0.0), mask=chosen)
        tl.atomic_add(total + at, 1.0, mask=chosen)


@triton.jit
def shift(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PADDING: tl.constexpr):
    block: tl.constexpr = [ROWS, COLUMNS]
    source = tl.make_tensor_descriptor(
        x, shape=[rows, columns], strides=[columns, 1], block_shape=block, padding_option=PADDING
    )
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, source.load([0, 0]) * 2)


@triton.jit
def copy_block(source, target):
    target.store([0, 0], source.load([0, 0]) + 1)


@triton.jit
def ones(out, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, 16), tl.full((SIZE,), 1.0, tl.float32))


def normal(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def product(a, b, *, dtype=FP32, accumulate=tl.float32, start=0.0, precision="ieee"):
    out = torch.full((a.shape[0], b.shape[1]), start, dtype=dtype, device=DEVICE)
    sizes = {"M": a.shape[0], "K": a.shape[1], "N": b.shape[1]}
    matmul[(1,)](a.to(DEVICE), b.to(DEVICE), out, **sizes, ACC=accumulate, PRECISION=precision)
    return out.cpu()


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, E4M3, E5M2], ids=str)
@pytest.mark.parametrize("shape", [(16, 16, 16), (32, 64, 128)])
def test_dot_multiplies_exactly_and_accumulates_in_float32(dtype, shape):
    m, n, k = shape
    if dtype.itemsize == 1 and not INTERPRETED and k < 32:
        pytest.skip("fp8 dot needs K >= 32 compiled")
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    exact = a.double() @ b.double() + 0.5
    bound = 2**-23 * k * (a.double().abs() @ b.double().abs() + 0.5)
    if dtype.itemsize == 1 and not INTERPRETED:
        bound = bound * 2**10  # Hopper's fp8 tensor cores keep 14 bits
    assert ((product(a, b, start=0.5) - exact).abs() <= bound).all()


@needs_interpreter
def test_float32_dot_is_exact_even_where_a_gpu_would_use_tf32():
    a, b = normal(16, 16, dtype=FP32), torch.eye(16)
    assert torch.equal(product(a, b, precision="tf32"), a)


def test_dot_into_float16_rounds_the_sum():
    a, b = normal(16, 16, dtype=FP16), torch.eye(16, dtype=FP16)
    assert torch.equal(product(a, b, dtype=FP16, accumulate=tl.float16), a)


def test_dot_of_int8_is_exact():
    a, b = (torch.randint(-128, 128, (32, 32), dtype=torch.int8) for _ in range(2))
    out = product(a, b, dtype=torch.int32, accumulate=tl.int32, precision=None)
    assert torch.equal(out.long(), a.long() @ b.long())


def test_dot_of_a_batch():
    a, b = normal(2, 16, 16, dtype=BF16), normal(2, 16, 16, dtype=BF16, seed=1)
    out = torch.zeros(2, 16, 16, device=DEVICE)
    batched[(1,)](a.to(DEVICE), b.to(DEVICE), out, B=2, M=16)
    torch.testing.assert_close(out.cpu().double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@needs_interpreter
@pytest.mark.parametrize("b_format", ["e2m1", "bf16"])
@pytest.mark.parametrize("a_format", ["e4m3", "e5m2", "fp16"])
def test_dot_scaled_is_the_product_of_scaled_numbers(a_format, b_format):
    torch_dtypes = {"e4m3": E4M3, "e5m2": E5M2, "fp16": FP16, "bf16": BF16}
    a = normal(32, 64, dtype=torch_dtypes[a_format])
    exponents = torch.randint(120, 135, (2, 32, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    if b_format == "e2m1":
        codes = torch.randint(0, 16, (64, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
        fp4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        b = torch.cat([fp4, -fp4])[codes.long()]
        given = codes[0::2] | codes[1::2] << 4
    else:
        b = given = normal(64, 32, dtype=BF16, seed=5)
    out = torch.zeros(32, 32)
    bits = a.view(torch.uint8) if a.itemsize == 1 else a
    scaled[(1,)](bits, exponents[0], given, exponents[1], out, A=a_format, B=b_format, PACKED=64 // given.shape[0])
    a_scale, b_scale = torch.exp2(exponents.double() - 127).repeat_interleave(32, dim=2)
    left, right = a.double() * a_scale, b.double() * b_scale.T
    assert ((out - left @ right).abs() <= 2**-23 * 64 * (left.abs() @ right.abs())).all()


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_atomic_addition_lets_lanes_that_share_an_address_take_turns(dtype):
    n, block = 50, 64
    where = torch.randint(0, 4, (block,), generator=torch.Generator().manual_seed(6)).int()
    x = torch.randint(-8, 9, (block,), generator=torch.Generator().manual_seed(7)).to(dtype)
    out, before = (
        torch.full((5,), 2.0, dtype=dtype, device=DEVICE),
        torch.full((block,), 99.0, dtype=dtype, device=DEVICE),
    )
    scatter_add[(1,)](out, before, where.to(DEVICE), x.to(DEVICE), n, BLOCK=block)
    expected = torch.full((5,), 2.0).index_add(0, where[:n].long(), x[:n].float())
    assert torch.equal(out.cpu().float(), expected)
    assert (before[n:] == 99).all()
    first = {int(each): i for i, each in reversed(list(enumerate(where[:n].tolist())))}
    if INTERPRETED:
        assert [before[i].item() for i in first.values()] == [2.0] * len(first)


@needs_interpreter
def test_every_atomic_addition_of_bf16_is_rounded():
    """256 + 1 is 256 in bfloat16, however often; in float32 it would be 272."""
    out = torch.full((1,), 256.0, dtype=BF16)
    nowhere = torch.zeros(16, dtype=torch.int32)
    scatter_add[(1,)](out, torch.zeros(16, dtype=BF16), nowhere, torch.ones(16, dtype=BF16), 16, BLOCK=16)
    assert out.item() == 256.0


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptors_pad_beyond_the_edge(dtype, padding):
    if not INTERPRETED and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor descriptors need an allocator before sm_90")
    if not INTERPRETED:
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=DEVICE))
    x, out = normal(3, 8, dtype=dtype), torch.zeros(4, 16, dtype=dtype, device=DEVICE)
    shift[(1,)](x.to(DEVICE), out, 3, 8, ROWS=4, COLUMNS=16, PADDING=padding)
    expected = torch.full((4, 16), torch.nan if padding == "nan" else 0.0, dtype=dtype)
    expected[:3, :8] = x * 2
    assert torch.equal(out.cpu().nan_to_num(nan=-1.0), expected.nan_to_num(nan=-1.0))


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_descriptors_made_on_the_host(dtype):
    if not INTERPRETED and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor descriptors are copies by TMA: sm_90")
    x, out = normal(8, 16, dtype=dtype).to(DEVICE), torch.zeros(8, 16, dtype=dtype, device=DEVICE)
    copy_block[(1,)](*(TensorDescriptor.from_tensor(each, [8, 16]) for each in (x, out)))
    assert torch.equal(out, x + 1)


def test_a_mask_may_be_made_of_a_comparison_of_plain_numbers():
    x, out, total = normal(16, dtype=FP32), torch.full((16,), -1.0), torch.zeros(16)
    x, out, total = (each.to(DEVICE) for each in (x, out, total))
    first_chunk[(1,)](x, out, total, 11, CHUNKS=3, BLOCK=16)
    assert torch.equal(out[:11], x[:11]) and (out[11:] == -1).all()
    assert total.tolist() == [1.0] * 11 + [0.0] * 5


@needs_interpreter
@pytest.mark.parametrize("size", [16.0, 12, 2**21])
def test_a_shape_that_no_tensor_may_have_is_refused_after_its_like_was_made(size):
    """The interpreter describes each shape once, and 16.0 would be found as 16."""
    out = torch.zeros(16)
    ones[(1,)](out, SIZE=16)
    assert out.eq(1).all()
    with pytest.raises(triton.runtime.errors.InterpreterError, match=r"Shape element 0 must|exceeds triton maximum"):
        ones[(1,)](out, SIZE=size)


@needs_interpreter
def test_types_of_one_shape_stay_apart():
    scalars = [tl.float32, tl.float16, tl.pointer_type(tl.float32), tl.pointer_type(tl.float32, 1, True)]
    made = [tl.block_type(scalar, [8, 4]) for scalar in [*scalars, *scalars]]
    assert [each.element_ty for each in made] == [each.scalar for each in made] == [*scalars, *scalars]
    assert made[:4] == made[4:] and all(a != b for a, b in itertools.combinations(made[:4], 2))
    assert [tl.tensor(None, each).dtype for each in made] == [*scalars, *scalars]
