"""Matrix products: as accurate as PyTorch's, whatever the strides, with exactly the traffic that their tiles need."""

import pytest
import torch
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.catalog import matrices
from threeloops.inner.kernels.launching import TARGETS
from threeloops.inner.kernels.matmul.descriptor_matmul import descriptor_matmul
from threeloops.inner.kernels.matmul.matmul import cost, matmul
from threeloops.inner.kernels.matmul.matrix_product import _input_precision_of
from threeloops.inner.kernels.matmul.persistent_matmul import persistent_matmul
from threeloops.inner.meter import L2, meter
from triton import cdiv

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ENTRIES = {entry.name: entry for entry in matrices.entries()}


def few_programs(a, b, **options):
    return persistent_matmul(a, b, programs=3, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("multiply", "m", "k", "n"),
    [
        (matmul, 1, 1, 1),
        (matmul, 127, 129, 65),
        (matmul, 128, 128, 128),
        (matmul, 129, 300, 1),
        (few_programs, 127, 129, 257),
        (few_programs, 256, 64, 384),
        (descriptor_matmul, 129, 96, 136),
        (descriptor_matmul, 256, 320, 64),
    ],
)
def test_as_accurate_as_pytorch(normal, as_accurate_as, gradients, dtype, multiply, m, k, n):
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    dc = normal(m, n, dtype=dtype, seed=2)
    as_accurate_as(multiply(a, b, input_precision="ieee"), a.double() @ b.double(), a @ b)

    def in_full(a, b):
        return multiply(a, b, input_precision="ieee")

    actual = gradients(in_full, (a, b), dc)
    exact = gradients(torch.matmul, (a, b), dc, exact=True)
    peer = gradients(torch.matmul, (a, b), dc)
    for what, ours, truth, theirs in zip(("dA", "dB"), actual, exact, peer, strict=True):
        as_accurate_as(ours, truth, theirs, what=what)


@pytest.mark.parametrize("multiply", [matmul, few_programs, descriptor_matmul])
@pytest.mark.parametrize(("a_transposed", "b_transposed"), [(True, False), (False, True), (True, True)])
def test_transposed_factors(normal, as_accurate_as, multiply, a_transposed, b_transposed):
    a = normal(96, 136, dtype=torch.float16).mT if a_transposed else normal(136, 96, dtype=torch.float16)
    b = normal(72, 96, dtype=torch.float16, seed=1).mT if b_transposed else normal(96, 72, dtype=torch.float16, seed=1)
    as_accurate_as(multiply(a, b), a.double() @ b.double(), a @ b)


def test_batch_of_matrices_with_any_strides(normal, as_accurate_as, gradients):
    a = normal(65, 3, 70, dtype=torch.float16).transpose(0, 1)
    b = normal(3, 33, 140, dtype=torch.float16, seed=1)[..., ::2].mT
    shared = normal(70, 20, dtype=torch.float16, seed=2).expand(3, 70, 20)
    for right in (b, shared):
        as_accurate_as(matmul(a, right), a.double() @ right.double(), a @ right)
    dc = normal(3, 65, 33, dtype=torch.float16, seed=3)
    exact, peer = gradients(torch.matmul, (a, b), dc, exact=True), gradients(torch.matmul, (a, b), dc)
    for ours, truth, theirs in zip(gradients(matmul, (a, b), dc), exact, peer, strict=True):
        as_accurate_as(ours, truth, theirs)


@pytest.mark.parametrize("multiply", [matmul, persistent_matmul, descriptor_matmul])
def test_empty_factors(device, multiply):
    for m, k, n in ((0, 16, 16), (16, 16, 0), (16, 0, 16)):
        a, b = torch.ones(m, k, device=device), torch.ones(k, n, device=device)
        assert torch.equal(multiply(a, b), a @ b)


def test_only_what_needs_a_gradient_gets_one(normal):
    a, b = normal(16, 16), normal(16, 16, seed=1).requires_grad_()
    matmul(a, b).sum().backward()
    assert a.grad is None and b.grad is not None


@pytest.mark.parametrize(("m", "k", "n"), [(256, 320, 384), (127, 129, 257), (1, 300, 5)])
@pytest.mark.parametrize("multiply", [matmul, few_programs])
def test_traffic_is_that_of_the_tiles(interpreted, normal, multiply, m, k, n):
    a, b = normal(m, k, dtype=torch.float16), normal(k, n, dtype=torch.float16, seed=1)
    for block_m, block_n, block_k in ((128, 128, 64), (64, 128, 32)):
        with meter() as traffic:
            multiply(a, b, block_m=block_m, block_n=block_n, block_k=block_k)
        rows, columns, steps = cdiv(m, block_m), cdiv(n, block_n), cdiv(k, block_k)
        (launch,) = traffic.launches
        assert launch.arguments["a"].requested_loaded == 2 * columns * m * k  # each column of tiles reads all of A
        assert launch.arguments["b"].requested_loaded == 2 * rows * k * n
        assert launch.arguments["c"].requested_stored == 2 * m * n == launch.requested_stored
        assert launch.dot_flops == 2 * rows * block_m * columns * block_n * steps * block_k
        assert launch.unique_bytes == cost(m, k, n).bytes
        assert not traffic.findings and launch.atomics == 0


@pytest.mark.parametrize("name", ENTRIES)
def test_catalog_moves_what_its_cost_says(least_traffic, name):
    least_traffic(ENTRIES[name])


def test_grouped_order_reads_less_from_memory(interpreted, normal):
    """16 × 16 tiles, 16 programs at a time, and a cache that holds half of the two factors."""
    a, b = normal(256, 32, dtype=torch.float16), normal(32, 256, dtype=torch.float16, seed=1)

    def from_memory(group_m):
        with meter(L2(16384, ways=16, resident_programs=16)) as traffic:
            matmul(a, b, block_m=16, block_n=16, block_k=32, group_m=group_m)
        return traffic.total.dram_bytes

    assert from_memory(4) < 0.7 * from_memory(1)


def test_persistent_programs_share_the_tiles(interpreted, normal):
    a, b = normal(300, 64), normal(64, 300, seed=1)
    expected = matmul(a, b, input_precision="ieee")
    for programs, used in ((1, 1), (4, 4), (1000, 15)):
        with meter() as traffic:
            actual = persistent_matmul(a, b, programs=programs, input_precision="ieee")
        assert torch.equal(actual, expected)
        assert traffic.total.programs == used


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["matmul", "persistent_matmul", "descriptor_matmul"])
def test_clean_code(name, target):
    entry = ENTRIES[name]
    units = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}
    for shape in (entry.compiled[0], entry.compiled[2]):
        (code,) = inspect(lambda: entry.launch(*entry.inputs(shape, torch.bfloat16, "meta", 0)), target)  # noqa: B023
        assert code.spilled_bytes == 0 and code.fits, code.report()
        assert code.tensor_cores == units[target]
        if name == "descriptor_matmul" and target in ("sm_90", "sm_100"):
            assert code.tma > 0 and not code.loads
        else:
            assert set(code.loads) == {128}, code.report()
            # The matrix cores of gfx942 leave each lane four neighbours of a row, and Triton stores them as they are.
            assert set(code.stores) == ({64} if target == "gfx942" else {128}), code.report()


@pytest.mark.parametrize("target", ("sm_80", "sm_90"))
def test_clean_code_for_ragged_rows_and_for_float32(target):
    a, b = torch.empty(4097, 1023, device="meta"), torch.empty(1023, 513, device="meta")
    for factors in ((a.bfloat16(), b.bfloat16()), (a, b), (a[:4096, :1008], b[:1008, :512])):
        for precision in ("tf32", "ieee"):
            (code,) = inspect(lambda: matmul(*factors, input_precision=precision), target)  # noqa: B023
            assert code.spilled_bytes == 0 and code.fits, code.report()
            assert (code.tensor_cores is None) == (precision == "ieee" and factors[0].dtype == torch.float32)


def test_float32_precision_is_torchs_unless_given():
    setting = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert _input_precision_of(torch.float32, None) == "ieee"
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert _input_precision_of(torch.float32, None) == "tf32"
        assert _input_precision_of(torch.float32, "ieee") == "ieee"
    finally:
        torch.backends.cuda.matmul.fp32_precision = setting


def test_errors_name_what_is_wrong(device):
    def ones(*shape, dtype=torch.float16):
        return torch.ones(shape, dtype=dtype, device=device)

    with pytest.raises(ValueError, match="a has 3 columns and b has 4 rows"):
        matmul(ones(2, 3), ones(4, 5))
    with pytest.raises(ValueError, match=r"b has shape \(3,\): expected 2 dimensions"):
        matmul(ones(2, 3), ones(3))
    with pytest.raises(ValueError, match="batch of 2 matrices and b of 3"):
        matmul(ones(2, 4, 4), ones(3, 4, 4))
    with pytest.raises(ValueError, match="b is float32 and a is float16"):
        matmul(ones(2, 3), ones(3, 4, dtype=torch.float32))
    with pytest.raises(ValueError, match="a is float64"):
        matmul(ones(2, 3, dtype=torch.float64), ones(3, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="input_precision = 'bf16': expected one of tf32, ieee"):
        matmul(ones(2, 3), ones(3, 4), input_precision="bf16")
    with pytest.raises(ValueError, match="block_n = 48: expected a power of two"):
        matmul(ones(2, 3), ones(3, 4), block_n=48)
    with pytest.raises(ValueError, match="programs = 0"):
        persistent_matmul(ones(2, 3), ones(3, 4), programs=0)
    with pytest.raises(ValueError, match="group_m = 0"):
        matmul(ones(2, 3), ones(3, 4), group_m=0)
    with pytest.raises(ValueError, match=r"b has rows 129 elements apart, 258 bytes: expected a multiple of 16"):
        descriptor_matmul(ones(16, 16), ones(16, 129))
    with pytest.raises(ValueError, match="a begins 2 bytes after a multiple of 16"):
        descriptor_matmul(ones(16 * 16 + 1)[1:].view(16, 16), ones(16, 16))
    with pytest.raises(ValueError, match="split the matrix"):
        matmul(
            torch.empty(2, 1 << 25, dtype=torch.float16, device="meta"), torch.empty(1 << 25, 2, device="meta").half()
        )
