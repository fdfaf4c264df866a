"""The traffic meter against closed forms: bytes, sectors, floating-point operations, by kernel and by argument."""

import numpy as np
import pytest
import torch
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.codegen import inspect
from threeloops.inner.launches import record
from threeloops.inner.meter import ArgumentTraffic, meter
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_release import BLOCK_POINTERS

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)


@triton.jit
def saxpy_kernel(x, y, a, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, a * tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < columns
    row = tl.load(x + offsets, mask=mask, other=float("-inf"))
    numerator = tl.exp(row - tl.max(row, axis=0))
    tl.store(y + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


@triton.jit
def two_pass_kernel(x, out, columns, BLOCK: tl.constexpr):
    base = tl.program_id(0) * columns
    total = tl.sum(tl.load(x + base + tl.arange(0, BLOCK)), axis=0)
    tl.store(out + base + tl.arange(0, BLOCK), tl.load(x + base + tl.arange(0, BLOCK)) / total)


@triton.jit
def matmul_kernel(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = (rows[:, None] < m) & (start + depth[None, :] < k)
        right = (start + depth[:, None] < k) & (columns[None, :] < n)
        tile_a = tl.load(a + rows[:, None] * k + start + depth[None, :], mask=left, other=0.0)
        tile_b = tl.load(b + (start + depth[:, None]) * n + columns[None, :], mask=right, other=0.0)
        total = tl.dot(tile_a, tile_b, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty),
             mask=(rows[:, None] < m) & (columns[None, :] < n))  # fmt: skip


@triton.jit
def attention_kernel(q, k, v, out, n, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    features = tl.arange(0, D)
    queries = tl.load(q + rows[:, None] * D + features[None, :])
    highest = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, n, BN):
        columns = start + tl.arange(0, BN)
        keys = tl.load(k + columns[:, None] * D + features[None, :])
        values = tl.load(v + columns[:, None] * D + features[None, :])
        scores = tl.dot(queries, tl.trans(keys))
        new = tl.maximum(highest, tl.max(scores, axis=1))
        probabilities = tl.exp(scores - new[:, None])
        scale = tl.exp(highest - new)
        weight = weight * scale + tl.sum(probabilities, axis=1)
        total = tl.dot(probabilities.to(values.dtype), values, total * scale[:, None])
        highest = new
    tl.store(out + rows[:, None] * D + features[None, :], (total / weight[:, None]).to(out.dtype.element_ty))


def saxpy(n=1000, block=256):
    x, y = torch.randn(n), torch.randn(n)
    saxpy_kernel[(triton.cdiv(n, block),)](x, y, 2.0, n, BLOCK=block)


def metered(launch, *arguments, **options):
    with meter() as traffic:
        launch(*arguments, **options)
    return traffic


def nonzero(flops):
    return {kind: number for kind, number in flops.items() if number}


@pytest.mark.parametrize("n", [1, 127, 128, 129, 1000])
def test_saxpy_reads_two_vectors_and_writes_one(n):
    total = metered(saxpy, n, block=128).total
    assert (total.requested_loaded, total.requested_stored) == (8 * n, 4 * n), "masked lanes count nothing"
    assert (total.unique_loaded, total.unique_stored, total.unique_bytes) == (8 * n, 4 * n, 12 * n)
    assert total.programs == triton.cdiv(n, 128)
    padded = total.programs * 128
    assert nonzero(total.flops) == {"multiply": padded, "add": padded}, (
        "arithmetic on masked lanes is done, so it counts"
    )
    assert total.total_flops == 2 * padded
    assert total.dram_bytes is None, "no L2 model was asked for"
    assert total.arguments["x"] == ArgumentTraffic(4 * n, 0, 4 * n, 0)
    assert total.arguments["y"] == ArgumentTraffic(4 * n, 4 * n, 4 * n, 4 * n), "read and written: both unique columns"


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 127), (2, 128), (5, 129)])
def test_softmax(rows, columns):
    x = torch.randn(rows, columns)
    y, block = torch.zeros_like(x), triton.next_power_of_2(columns)
    total = metered(softmax_kernel[(rows,)], x, y, columns, BLOCK=block).total
    assert (total.requested_loaded, total.requested_stored) == (4 * x.numel(), 4 * x.numel())
    tile = rows * block
    reduced = 2 * rows * (block - 1)
    assert nonzero(total.flops) == nonzero({"reduce": reduced, "add": tile, "special": tile, "divide": tile})
    torch.testing.assert_close(y, torch.softmax(x, dim=1), msg="the metered kernel still computes")


def test_a_second_pass_is_requested_again_and_not_unique_again():
    x = torch.rand(4, 64) + 1
    total = metered(two_pass_kernel[(4,)], x, torch.zeros_like(x), 64, BLOCK=64).total
    assert total.requested_loaded == 2 * total.unique_loaded == 2 * 4 * 64 * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (127, 65, 33), (1, 1, 1), (32, 96, 129)])
def test_tiled_matmul(m, n, k, dtype):
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.zeros(m, n, dtype=dtype)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    total = metered(matmul_kernel[grid], a, b, c, m, n, k, BM=32, BN=32, BK=32).total
    size = a.element_size()
    assert total.requested_loaded == (m * k * grid[1] + k * n * grid[0]) * size, (
        "A once per column of tiles, B once per row"
    )
    assert total.unique_loaded == (m * k + k * n) * size
    assert total.requested_stored == total.unique_stored == m * n * size
    assert total.dot_flops == 2 * 32**3 * grid[0] * grid[1] * triton.cdiv(k, 32)
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-2 * k**0.5)


def test_matmul_512_in_tiles_of_64_64_32():
    a, b = torch.zeros(512, 512, dtype=torch.float16), torch.zeros(512, 512, dtype=torch.float16)
    c = torch.zeros_like(a)
    traffic = metered(matmul_kernel[(8, 8)], a, b, c, 512, 512, 512, BM=64, BN=64, BK=32)
    assert traffic.total.requested_loaded == 8_388_608
    assert traffic.total.dot_flops == 2 * 512**3
    assert traffic.total.unique_bytes == 3 * 512 * 512 * 2
    assert traffic.total.sectors_per_request == 2, "32 lanes of fp16 are 64 bytes"
    assert traffic.findings == []


@pytest.mark.parametrize(("n", "rows", "columns"), [(64, 16, 16), (128, 64, 32), (128, 32, 128)])
def test_attention_loads_all_keys_and_values_for_every_block_of_queries(n, rows, columns):
    d = 16
    q, k, v = (torch.randn(n, d, dtype=torch.float32).half() for _ in range(3))
    out = torch.zeros_like(q)
    total = metered(attention_kernel[(n // rows,)], q, k, v, out, n, D=d, BM=rows, BN=columns).total
    assert total.requested_loaded == 2 * n * d * (1 + 2 * n // rows)
    assert total.unique_bytes == 4 * 2 * n * d
    assert total.dot_flops == 4 * n * n * d
    assert total.flops["special"] == n * n + n * n // columns, "one exponential per score, one per query and block"
    reference = torch.softmax(q.double() @ k.double().T, dim=1) @ v.double()
    torch.testing.assert_close(out.double(), reference, rtol=1e-2, atol=1e-2)


@triton.jit
def strided_kernel(x, out, stride, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK) * stride)
    tl.store(out + tl.arange(0, BLOCK), value)


@pytest.mark.parametrize(
    ("dtype", "stride", "sectors"),
    [
        (torch.float32, 1, 4), (torch.float16, 1, 2), (torch.float64, 1, 8), (torch.int8, 1, 1),
        (torch.float32, 2, 8), (torch.float32, 8, 32), (torch.float32, 100, 32), (torch.float32, 0, 1),
    ],
)  # fmt: skip
def test_sectors_of_a_request(dtype, stride, sectors):
    x = torch.zeros(1 + 127 * stride, dtype=dtype)
    total = metered(strided_kernel[(1,)], x, torch.zeros(128, dtype=dtype), stride, BLOCK=128).total
    assert total.requests == 8, "128 lanes loaded and 128 stored, 32 a request"
    stored = 4 * 32 * x.element_size() // 32
    assert (total.sectors - stored) / 4 == sectors


def test_sectors_count_from_the_storage_not_from_the_view():
    x = torch.zeros(256)[3:131]
    total = metered(strided_kernel[(1,)], x, torch.zeros(128), 1, BLOCK=128).total
    assert total.sectors == 4 * 5 + 4 * 4, "32 unaligned floats lie in 5 sectors"


def test_memory_that_is_not_aligned_to_16_bytes_stays_so():
    """Everything else about an address is made the same on every machine."""
    memory = np.zeros(2048, dtype=np.uint8)
    for shift, sectors in ((4, 5), (16, 4)):
        start = (shift - memory.ctypes.data) % 32
        x = torch.from_numpy(memory[start : start + 512].view(np.float32))
        assert x.data_ptr() % 32 == shift
        total = metered(strided_kernel[(1,)], x, torch.zeros(128), 1, BLOCK=128).total
        assert total.sectors == 4 * sectors + 16


@triton.jit
def scalar_kernel(x, y):
    pid = tl.program_id(0)
    tl.store(y + pid, tl.load(x) + tl.load(x + pid))


def test_a_scalar_is_one_lane():
    total = metered(scalar_kernel[(3,)], torch.ones(3), torch.ones(3)).total
    assert (total.requested_loaded, total.unique_loaded, total.requested_stored) == (24, 12, 12)
    assert (total.requests, total.sectors, total.sectors_per_request) == (9, 9, 1.0)


@triton.jit
def options_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    as_integers = (offsets < n).to(tl.int32)
    first = tl.load(x + offsets, mask=as_integers != 0, other=7.0, cache_modifier=".cg", eviction_policy="evict_first")
    second = tl.load(x + offsets, mask=offsets < n, other=0.0, volatile=True)
    tl.store(y + offsets, first + second, mask=offsets < n, cache_modifier=".cs", eviction_policy="evict_last")


def test_masks_modifiers_and_fill_values_count_nothing():
    x, y = torch.ones(10), torch.zeros(10)
    total = metered(options_kernel[(1,)], x, y, 10, BLOCK=16).total
    assert (total.requested_loaded, total.unique_loaded, total.requested_stored) == (80, 40, 40)
    assert y.tolist() == [2.0] * 10


@triton.jit
def masked_out_kernel(x, BLOCK: tl.constexpr):
    nobody = tl.arange(0, BLOCK) < 0
    tl.store(x + tl.arange(0, BLOCK), tl.load(x + 10**9 + tl.arange(0, BLOCK), mask=nobody), mask=nobody)


def test_an_access_without_active_lanes_is_none():
    traffic = metered(masked_out_kernel[(2,)], torch.zeros(4), BLOCK=4)
    assert (traffic.total.requested_bytes, traffic.total.requests, traffic.findings) == (0, 0, [])
    assert traffic.total.sectors_per_request == 0
    assert traffic.total.arguments == {"x": ArgumentTraffic()}


@triton.jit
def descriptor_kernel(x, y_pointer, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    tile = x.load([tl.program_id(0) * BM, 0])
    y = tl.make_tensor_descriptor(y_pointer, shape=[rows, columns], strides=[columns, 1], block_shape=[BM, BN])
    y.store([tl.program_id(0) * BM, 0], tile)


def test_descriptors_count_what_lies_inside_their_shape():
    x = torch.randn(13, 24)
    y = torch.zeros_like(x)
    descriptor = TensorDescriptor.from_tensor(x, [8, 32])
    traffic = metered(descriptor_kernel[(2,)], descriptor, y, 13, 24, BM=8, BN=32)
    assert torch.equal(x, y)
    assert traffic.total.arguments == {
        "x": ArgumentTraffic(x.nbytes, 0, x.nbytes, 0),
        "y_pointer": ArgumentTraffic(0, x.nbytes, 0, x.nbytes),
    }
    assert traffic.findings == []


@triton.jit
def block_pointer_kernel(x, out, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (BM, BN), (1, 0))
    target = tl.make_block_ptr(out, (rows, columns), (columns, 1), (0, 0), (BM, BN), (1, 0))
    for _ in range(0, rows, BM):
        tl.store(target, tl.load(source, boundary_check=(0, 1), padding_option="zero"), boundary_check=(0, 1))
        source, target = tl.advance(source, (BM, 0)), tl.advance(target, (BM, 0))


@BLOCK_POINTERS
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_count_what_their_boundary_check_lets_through():
    x = torch.randn(13, 30)
    y = torch.zeros_like(x)
    traffic = metered(block_pointer_kernel[(1,)], x, y, 13, 30, BM=8, BN=32)
    assert torch.equal(x, y)
    assert traffic.total.arguments == {
        "x": ArgumentTraffic(x.nbytes, 0, x.nbytes, 0),
        "out": ArgumentTraffic(0, x.nbytes, 0, x.nbytes),
    }
    assert traffic.findings == []


@triton.jit
def tuple_kernel(pair, BLOCK: tl.constexpr):
    tl.store(pair[1] + tl.arange(0, BLOCK), tl.load(pair[0] + tl.arange(0, BLOCK)))


def test_tensors_in_a_tuple_are_arguments_of_their_own():
    total = metered(tuple_kernel[(1,)], (torch.ones(8), torch.zeros(8)), BLOCK=8).total
    assert total.arguments == {"pair[0]": ArgumentTraffic(32, 0, 32, 0), "pair[1]": ArgumentTraffic(0, 32, 0, 32)}


@triton.jit
def add_kernel(x, y, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets) + tl.load(y + offsets))


def test_two_arguments_of_one_storage_share_its_bytes():
    storage = torch.ones(96)
    total = metered(add_kernel[(1,)], storage[:64], storage[32:], torch.zeros(64), BLOCK=64).total
    assert total.requested_loaded == 512
    assert total.arguments["x"].unique_loaded == total.arguments["y"].unique_loaded == 256
    assert total.unique_loaded == 384, "32 elements are read through both"


def test_one_tensor_passed_twice_is_two_arguments():
    x = torch.ones(64)
    total = metered(add_kernel[(1,)], x, x, x, BLOCK=64).total
    assert (total.unique_loaded, total.unique_stored) == (256, 256)
    assert total.arguments["x"] == total.arguments["y"] == ArgumentTraffic(256, 0, 256, 0)
    assert total.arguments["out"] == ArgumentTraffic(0, 256, 0, 256)


def test_a_reinterpreted_tensor():
    x, y = torch.arange(8, dtype=torch.int32), torch.ones(8)
    out = torch.zeros(8)
    total = metered(add_kernel[(1,)], triton.reinterpret(x, tl.float32), y, out, BLOCK=8).total
    assert torch.equal(out, x.view(torch.float32) + 1)
    assert total.arguments["x"] == ArgumentTraffic(32, 0, 32, 0)


@triton.jit
def unaligned_kernel(x, out):
    pointer = x.to(tl.pointer_type(tl.int16))
    odd = (x + 1).to(tl.pointer_type(tl.int16))
    tl.store(out, tl.load(pointer) + tl.load(odd) + tl.load(odd + 2))


def test_bytes_are_counted_once_however_accesses_overlap():
    x, out = torch.zeros(8, dtype=torch.int8), torch.zeros(1, dtype=torch.int16)
    total = metered(unaligned_kernel[(1,)], x, out).total
    assert total.arguments["x"] == ArgumentTraffic(6, 0, 5, 0), "bytes 0, 1, 2, 5 and 6"


@triton.jit
def transposed_kernel(x, y, n, BM: tl.constexpr, BN: tl.constexpr):
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    tl.store(y + columns[None, :] * BM + rows[:, None], tl.load(x + rows[:, None] * n + columns[None, :]))


def test_lanes_are_numbered_along_the_contiguous_axis():
    x = torch.randn(32, 64)
    y = torch.zeros(64, 32)
    total = metered(transposed_kernel[(1,)], x, y, 64, BM=32, BN=64).total
    assert torch.equal(y, x.T)
    assert total.requests == 2 * 64
    assert total.sectors == 2 * 64 * 4, "read by rows and written by columns, both without waste"


def test_so_does_the_compiler_read_rows_and_write_columns():
    x, y = torch.randn(32, 64), torch.zeros(64, 32)
    (code,) = inspect(lambda: transposed_kernel[(1,)](x, y, 64, BM=32, BN=64), "sm_90")
    assert code.widest_load == code.widest_store == 128


@triton.jit
def every_other_kernel(x, y, BM: tl.constexpr, BN: tl.constexpr):
    row, column = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    tl.store(y + row * BN + column, tl.load(x + (row * BN + column) * 2))


def test_a_tile_with_no_contiguous_axis_is_numbered_in_the_order_of_its_axes():
    x, y = torch.randn(32, 64 * 2), torch.zeros(32, 64)
    total = metered(every_other_kernel[(1,)], x, y, BM=32, BN=64).total
    assert torch.equal(y, x[:, ::2])
    assert total.sectors == 64 * 8 + 64 * 4


@triton.jit
def masked_transpose_kernel(x, y, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    row, column = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (row < rows) & (column < columns)
    tl.store(y + column * rows + row, tl.load(x + row * columns + column, mask=inside), mask=inside)


def test_masked_lanes_change_no_order():
    x, y = torch.randn(24, 40), torch.zeros(40, 24)
    total = metered(masked_transpose_kernel[(1,)], x, y, 24, 40, BM=32, BN=64).total
    assert torch.equal(y, x.T) and not total.arguments["y"].requested_loaded
    # Row by row: 24 requests of 32 lanes (4 sectors) and 24 of 8 (1 or 2). Column by column: 40 of 24 lanes, 3 sectors.
    starts = [row * 40 + 32 for row in range(24)]
    loaded = sum(len({4 * (row * 40 + lane) // 32 for lane in range(32)}) for row in range(24))
    loaded += sum(len({4 * (start + lane) // 32 for lane in range(8)}) for start in starts)
    assert (total.requests, total.sectors) == (24 + 24 + 40, loaded + 40 * 3)


@triton.jit
def pointer_table_kernel(table, out, BLOCK: tl.constexpr):
    pointer = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.load(pointer + tl.arange(0, BLOCK)))


def test_pointers_that_a_kernel_loads_from_memory_are_followed():
    parts, out = [torch.full((16,), 1.0), torch.full((16,), 2.0)], torch.zeros(32)
    table = torch.tensor([part.data_ptr() for part in parts])
    traffic = metered(pointer_table_kernel[(2,)], table, out, BLOCK=16)
    assert out.tolist() == [1.0] * 16 + [2.0] * 16
    assert traffic.total.arguments["memory that is no argument"] == ArgumentTraffic(128, 0, 128, 0)
    assert (traffic.total.unique_loaded, traffic.findings) == (128 + 16, [])


def test_pointers_from_memory_may_be_confined_to_the_arguments():
    part, out = torch.ones(16), torch.zeros(32)
    table = torch.tensor([part.data_ptr(), out.data_ptr() + 64])
    with meter(arguments_only=True) as traffic, meter():
        pointer_table_kernel[(2,)](table, out, BLOCK=16)
    assert out.tolist() == [0.0] * 32
    (finding,) = traffic.findings
    assert (finding.kind, finding.program, finding.argument) == (
        "out-of-bounds",
        (0, 0, 0),
        "memory that is no argument",
    )
    assert traffic.total.arguments["out"].requested_loaded == 64, "the second pointer leads into an argument"


@triton.jit
def either_kernel(x, y, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(tl.where(offsets % 2 == 0, x + offsets, y + offsets)))


def test_one_access_to_two_arguments_counts_for_each():
    out = torch.zeros(64)
    traffic = metered(either_kernel[(1,)], torch.zeros(64), torch.ones(64), out, BLOCK=64)
    assert out.tolist() == [0.0, 1.0] * 32
    assert traffic.total.arguments["x"] == traffic.total.arguments["y"] == ArgumentTraffic(128, 0, 128, 0)
    assert traffic.findings == []


@triton.jit
def arithmetic_kernel(x, BLOCK: tl.constexpr, KIND: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    value = tl.load(x + offsets)
    if KIND == "fma":
        value = tl.fma(value, value, value)
    elif KIND == "special":
        value = tl.sqrt(tl.exp(value)) + 0
    elif KIND == "compare":
        value = tl.where(tl.maximum(value, 0.5) > 0.25, value, 0.0)
    elif KIND == "divide":
        value = value / 3.0
    elif KIND == "negate":
        value = -value
    elif KIND == "none":
        value = tl.abs(tl.floor(value)).to(tl.float16).to(tl.float32)
    elif KIND == "integers":
        value = ((offsets * 3 + 1) // 2).to(tl.float32)
    tl.store(x + offsets, value)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("fma", {"fma": 128}),
        ("special", {"special": 128, "add": 64}),
        ("compare", {"compare": 128}),
        ("divide", {"divide": 64}),
        ("negate", {"add": 64}),
        ("none", {}),
        ("integers", {}),
    ],
)
def test_floating_point_operations_by_kind(kind, expected):
    total = metered(arithmetic_kernel[(1,)], torch.rand(64), BLOCK=64, KIND=kind).total
    assert nonzero(total.flops) == expected


@triton.jit
def multiply_combine(a, b):
    return a * b


@triton.jit
def recurrence(decay_a, state_a, decay_b, state_b):
    return decay_a * decay_b, state_a * decay_b + state_b


@triton.jit
def reduction_kernel(x, out, M: tl.constexpr, N: tl.constexpr, KIND: tl.constexpr):
    tile = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if KIND == "sum":
        tl.store(out + tl.arange(0, M), tl.sum(tile, axis=1))
    elif KIND == "sum of all":
        tl.store(out, tl.sum(tile))
    elif KIND == "argmax":
        tl.store(out + tl.arange(0, N), tl.argmax(tile, axis=0).to(tl.float32))
    elif KIND == "integers":
        tl.store(out + tl.arange(0, M), tl.sum(tile.to(tl.int32), axis=1).to(tl.float32))
    elif KIND == "product":
        tl.store(out + tl.arange(0, M), tl.reduce(tile, 1, multiply_combine))
    elif KIND == "cumulative":
        tile = tl.cumsum(tile, axis=1)
        tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], tile)
    elif KIND == "recurrence":
        _, tile = tl.associative_scan((tile, tile), 1, recurrence)
        tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], tile)


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("sum", 8 * 15),
        ("sum of all", 127),
        ("argmax", 16 * 7),
        ("integers", 0),
        ("product", 8 * 15),
        ("cumulative", 8 * 15),
        ("recurrence", 3 * 8 * 15),
    ],
)
def test_a_reduction_of_n_elements_combines_n_minus_1_times(kind, flops):
    x, out = torch.rand(8, 16), torch.zeros(8, 16)
    total = metered(reduction_kernel[(1,)], x, out, M=8, N=16, KIND=kind).total
    assert total.total_flops == total.flops["reduce"] == flops


@triton.jit
def product_kernel(a, out, PRECISION: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    left = tl.load(a + at)
    tl.store(out + at, tl.dot(left, left, input_precision=PRECISION))


@pytest.mark.parametrize(
    ("dtype", "precision", "rounded"),
    [
        (torch.float32, None, True),
        (torch.float32, "tf32", True),
        (torch.float32, "tf32x3", False),
        (torch.float32, "ieee", False),
        (torch.float16, None, False),
    ],
)
def test_products_that_a_gpu_would_round_to_tf32_are_counted(dtype, precision, rounded):
    a, out = torch.ones(16, 16, dtype=dtype), torch.empty(16, 16)
    total = metered(product_kernel[(3,)], a, out, PRECISION=precision).total
    assert total.dot_flops == 3 * 2 * 16**3
    assert total.tf32_flops == (total.dot_flops if rounded else 0)


@triton.jit
def scaled_kernel(a, a_scale, b, out, FORMAT: tl.constexpr, KA: tl.constexpr, K: tl.constexpr):
    rows, columns = tl.arange(0, 32), tl.arange(0, 16)
    left = tl.load(a + rows[:, None] * KA + tl.arange(0, KA)[None, :])
    right = tl.load(b + tl.arange(0, K)[:, None] * 16 + columns[None, :])
    scale = tl.load(a_scale + rows[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    product = tl.dot_scaled(left, scale, FORMAT, right, None, "e4m3")
    tl.store(out + rows[:, None] * 16 + columns[None, :], product)


@pytest.mark.parametrize(("format", "packed"), [("e4m3", 1), ("e2m1", 2)])
def test_scaled_dot_counts_elements_not_bytes(format, packed):
    a, scale = torch.zeros(32, 64 // packed, dtype=torch.uint8), torch.full((32, 2), 127, dtype=torch.uint8)
    b, out = torch.zeros(64, 16, dtype=torch.uint8), torch.ones(32, 16)
    total = metered(scaled_kernel[(1,)], a, scale, b, out, FORMAT=format, KA=64 // packed, K=64).total
    assert total.dot_flops == 2 * 32 * 64 * 16
    assert total.requested_loaded == a.nbytes + scale.nbytes + b.nbytes


@triton.jit
def histogram_kernel(x, counts, n, BLOCK: tl.constexpr, ORDER: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bins = tl.load(x + offsets, mask=offsets < n, other=0)
    tl.atomic_add(counts + bins, 1, mask=offsets < n, sem=ORDER)


@triton.jit
def lock_kernel(lock, total):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + 1.0)
    tl.atomic_xchg(lock, 0)


@pytest.mark.parametrize("order", ["acq_rel", "relaxed"])
def test_atomics_read_and_write_their_bytes(order):
    n = 100
    x, counts = torch.randint(0, 8, (n,)), torch.zeros(8, dtype=torch.int32)
    traffic = metered(histogram_kernel[(4,)], x, counts, n, BLOCK=32, ORDER=order)
    assert counts.tolist() == torch.bincount(x, minlength=8).tolist()
    assert traffic.total.atomics == n
    touched = 4 * len(x.unique())
    assert traffic.total.arguments["counts"] == ArgumentTraffic(4 * n, 4 * n, touched, touched)


def test_compare_and_swap_is_an_atomic():
    lock, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    traffic = metered(lock_kernel[(5,)], lock, total)
    assert total.item() == 5
    assert traffic.total.atomics == 10
    assert traffic.findings == [], "the lock orders the programs"


@triton.jit
def load_through_a_function(pointer, offsets):
    return tl.load(pointer + offsets)


@triton.jit
def calling_kernel(x, y, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), load_through_a_function(x, tl.arange(0, BLOCK)))


def test_device_functions_count():
    assert metered(calling_kernel[(1,)], torch.ones(8), torch.zeros(8), BLOCK=8).total.requested_bytes == 64


def test_several_launches_add_up_and_keep_their_own_counts():
    with meter() as traffic:
        saxpy(1000)
        softmax_kernel[(2,)](torch.ones(2, 64), torch.zeros(2, 64), 64, BLOCK=64)
        saxpy(10)
    assert [launch.name for launch in traffic.launches] == ["saxpy_kernel", "softmax_kernel", "saxpy_kernel"]
    assert [launch.grid for launch in traffic.launches] == [(4, 1, 1), (2, 1, 1), (1, 1, 1)]
    assert [launch.unique_bytes for launch in traffic.launches] == [12_000, 1024, 120]
    assert traffic.total.unique_bytes == 13_144, "each launch may read memory anew"
    assert traffic.total.programs == 7
    assert traffic.total.arguments["x"].requested_loaded == 4000 + 512 + 40
    assert traffic.launches[0].file == __file__


def test_nothing_outside_the_block_is_counted():
    saxpy()
    with meter() as traffic:
        pass
    saxpy()
    assert (traffic.launches, traffic.total.requested_bytes, traffic.total.total_flops) == ([], 0, 0)
    assert list(traffic.total.flops) == ["dot", "add", "multiply", "divide", "fma", "special", "compare", "reduce"]


def test_nested_meters_both_count():
    with meter() as outer:
        saxpy(100)
        with meter() as inner:
            saxpy(200)
        saxpy(300)
    assert [launch.requested_bytes for launch in inner.launches] == [2400]
    assert [launch.requested_bytes for launch in outer.launches] == [1200, 2400, 3600]


def test_a_meter_ends_itself_and_not_its_equal():
    with meter() as outer:
        with meter():
            pass
        saxpy(100)
    assert len(outer.launches) == 1


def test_a_meter_inside_a_recording_that_runs_nothing_counts_nothing():
    with meter() as traffic, record(execute=False) as launches:
        saxpy()
    assert (len(launches), traffic.launches) == (1, [])


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        add_kernel[(1,)](x, x, out, BLOCK=64)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = torch.empty_like(gradient)
        add_kernel[(1,)](gradient.contiguous(), gradient.contiguous(), out, BLOCK=64)
        return out


def test_launches_in_autograd_functions_count_forward_and_backward():
    x = torch.randn(64, requires_grad=True)
    with meter() as traffic:
        (Doubled.apply(x) ** 2).sum().backward()
    torch.testing.assert_close(x.grad, 8 * x.detach())
    assert len(traffic.launches) == 2
    assert traffic.findings == []


@triton.jit
def failing_kernel(x):
    tl.store(x, tl.load(x) + 1)
    tl.static_assert(tl.program_id(0) < 1, "too many programs")


def test_a_kernel_that_raises_leaves_the_meter_and_the_interpreter_in_order():
    x = torch.zeros(1)
    with meter() as traffic:
        with pytest.raises(Exception, match="too many programs"):
            failing_kernel[(2,)](x)
        saxpy(10)
    assert traffic.launches[-1].requested_bytes == 120
    saxpy(10)
    assert len(traffic.launches) == 2


def test_results_are_those_of_the_plain_interpreter():
    torch.manual_seed(0)
    q, k, v = (torch.randn(64, 16).half() for _ in range(3))
    plain, counted = torch.zeros_like(q), torch.zeros_like(q)
    attention_kernel[(4,)](q, k, v, plain, 64, D=16, BM=16, BN=32)
    with meter("H100 SXM"):
        attention_kernel[(4,)](q, k, v, counted, 64, D=16, BM=16, BN=32)
    assert torch.equal(plain, counted)


def test_a_compiled_kernel_is_refused_with_the_way_out():
    from triton.runtime.jit import JITFunction

    compiled = JITFunction(saxpy_kernel.fn)
    with meter(), pytest.raises(RuntimeError, match="saxpy_kernel is compiled.*THREELOOPS_DEVICE=cpu"):
        compiled[(1,)](torch.zeros(4), torch.zeros(4), 1.0, 4, BLOCK=4)
    with meter() as traffic:
        saxpy()
    assert len(traffic.launches) == 1, "the refusal leaves nothing behind"


def test_an_empty_grid_is_a_launch_without_traffic():
    traffic = metered(saxpy_kernel[(0,)], torch.zeros(4), torch.zeros(4), 1.0, 4, BLOCK=4)
    assert (traffic.total.programs, traffic.total.requested_bytes) == (0, 0)


def test_a_grid_of_three_dimensions():
    grids = np.zeros((2, 3, 4))
    out = torch.zeros(24)

    @triton.jit
    def mark_kernel(out):
        place = (tl.program_id(0) * 3 + tl.program_id(1)) * 4 + tl.program_id(2)
        tl.store(out + place, 1.0)

    traffic = metered(mark_kernel[grids.shape], out)
    assert traffic.launches[0].grid == (2, 3, 4)
    assert (traffic.total.programs, traffic.total.unique_stored) == (24, 96)
