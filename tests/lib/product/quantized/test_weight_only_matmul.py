"""The kernel on codes: as accurate as exact weights allow, at sizes that fill no tile, and in clean code.

Runs in Triton's interpreter where there is no GPU; what is compiled for GPUs is read, not run.
"""

import pytest
import torch
from threeloops.hardware import device as chosen_device
from threeloops.inner import interpreter
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.launching import TARGETS
from threeloops.product.quantized import QuantizedLinear, QuantizedWeight, Scheme, quantize_weight
from threeloops.product.quantized.weight_only_matmul import _parts, cost, reference, weight_only_matmul

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SCHEMES = (Scheme(4, 32), Scheme(4, 128, symmetric=False), Scheme(8, 64), Scheme(8, 16, symmetric=False))


def drawn(m, n, k, scheme, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(m, k, generator=generator).to(dtype)
    weight = quantize_weight(torch.randn(n, k, generator=generator) + 0.3, scheme)
    return x.to(chosen_device()), moved(weight, chosen_device())


def moved(weight, device):
    parts = (None if each is None else each.to(device) for each in (weight.codes, weight.scales, weight.zeros))
    return QuantizedWeight(weight.scheme, weight.columns, *parts)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 65, 257), (17, 63, 127), (3, 130, 1024)])
def test_as_accurate_as_float32_sums_of_exact_weights(m, n, k, scheme, dtype):
    x, weight = drawn(m, n, k, scheme, dtype)
    exact = x.double() @ weight.dequantize(torch.float64).T
    out = weight_only_matmul(x, weight)
    assert out.dtype == dtype and out.shape == (m, n)
    sums = 1e-6 * (x.double().abs() @ weight.dequantize(torch.float64).abs().T)
    rounding = exact.abs() * torch.finfo(dtype).eps / 2
    assert ((out.double() - exact).abs() <= 1.01 * (sums + rounding)).all()
    torch.testing.assert_close(reference(x, weight).double(), exact, rtol=2e-2, atol=2e-2)


def test_the_reference_is_as_exact_as_float64_allows():
    x, weight = drawn(3, 5, 1024, Scheme(8, 64), torch.float64)
    exact = x @ weight.dequantize(torch.float64).T
    torch.testing.assert_close(reference(x, weight), exact, rtol=1e-12, atol=1e-12)


def test_parts_of_long_rows_add_up():
    scheme = Scheme(4, 16)
    x, weight = drawn(2, 5, 16 * 40 + 7, scheme, torch.float32)
    assert _parts(1, 41) == (11, 4)
    exact = x.double() @ weight.dequantize(torch.float64).T
    torch.testing.assert_close(weight_only_matmul(x, weight).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("programs", "steps"), [(1, 1), (1, 3), (1, 1000), (64, 32), (1000, 32), (7, 33)])
def test_parts_cover_all_steps_and_none_is_empty(programs, steps):
    parts, each = _parts(programs, steps)
    assert parts * each >= steps > (parts - 1) * each


def test_any_leading_dimensions_and_strides():
    x, weight = drawn(6, 20, 64, Scheme(8, 32), torch.float32)
    expected = weight_only_matmul(x, weight)
    assert torch.equal(weight_only_matmul(x.view(2, 3, 64), weight), expected.view(2, 3, 20))
    assert torch.equal(weight_only_matmul(x.T.contiguous().T, weight), expected)
    assert torch.equal(weight_only_matmul(x[0], weight), expected[0])
    assert weight_only_matmul(x[:0], weight).shape == (0, 20)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_reads_the_codes_once_and_nothing_wider(scheme):
    if not interpreter.interpreted():
        pytest.skip("the traffic meter needs Triton's interpreter; here kernels are compiled for a GPU")
    from threeloops.inner.meter import meter

    m, n, k = 3, 130, 512
    x, weight = drawn(m, n, k, scheme, torch.float16)
    with meter() as traffic:
        weight_only_matmul(x, weight)
    (launch,) = traffic.launches
    assert launch.arguments["codes_ptr"].requested_loaded == weight.codes.nbytes
    assert launch.arguments["scales_ptr"].requested_loaded >= weight.scales.nbytes
    steps = -(-k // min(128, scheme.group))
    parts, _ = _parts(-(-n // 64), steps)
    out = m * n * (2 if parts == 1 else 4 * parts)
    assert traffic.total.unique_bytes == cost(m, k, n, scheme).bytes - 2 * m * n + out
    assert not traffic.findings and traffic.total.atomics == 0


def test_cost_by_hand():
    work = cost(2, 128, 10, Scheme(4, 64, symmetric=False))
    assert work.bytes == 2 * (128 + 10) * 2 + 10 * (64 + 2 * 3) and work.flops == 2 * 2 * 128 * 10


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scheme", [Scheme(4, 128), Scheme(4, 32, symmetric=False), Scheme(8, 128)], ids=str)
def test_clean_code(scheme, target):
    """For 1 token and for 64, of a layer in a model of 8 billion parameters."""
    weight = quantize_weight(torch.zeros(16, 16), scheme)  # only for its dtypes
    n, k, meta = 14336, 4096, torch.device("meta")
    weight = QuantizedWeight(
        scheme,
        k,
        torch.empty(n, k * scheme.bits // 8, dtype=torch.uint8, device=meta),
        torch.empty(n, scheme.groups(k), dtype=torch.float16, device=meta),
        None if weight.zeros is None else torch.empty(n, scheme.groups(k), dtype=torch.uint8, device=meta),
    )
    for tokens, dtype in ((1, torch.bfloat16), (64, torch.float16)):
        x = torch.empty(tokens, k, dtype=dtype, device=meta)
        (code,) = inspect(lambda: weight_only_matmul(x, weight), target)  # noqa: B023
        assert code.spilled_bytes == 0 and code.fits, code.report()
        assert code.tensor_cores is not None, code.report()
        assert target == "gfx942" or code.async_copies > 0, "codes are not fetched ahead"


def test_errors_name_what_is_wrong():
    x, weight = drawn(2, 5, 40, Scheme(4, 32), torch.float32)
    with pytest.raises(ValueError, match="x has 39 columns: expected 40, those of the weight"):
        weight_only_matmul(x[:, :39], weight)
    with pytest.raises(ValueError, match="x is float64: expected float16 or bfloat16 or float32"):
        weight_only_matmul(x.double(), weight)
    with pytest.raises(ValueError, match="codes is int8: expected uint8"):
        weight_only_matmul(x, QuantizedWeight(weight.scheme, 40, weight.codes.view(torch.int8), weight.scales))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_layer_on_a_gpu_computes_what_it_does_on_a_cpu():
    layer = QuantizedLinear(quantize_weight(torch.randn(130, 300), Scheme(4, 32)), torch.randn(130))
    for tokens in (1, 64, 65, 200):
        x = torch.randn(tokens, 300)
        expected = layer.cpu()(x)
        torch.testing.assert_close(layer.cuda()(x.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)
