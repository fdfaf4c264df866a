"""LayerNorm, forward and backward."""

import pytest
import torch
from threeloops.inner.kernels.rows import layernorm as rows_layernorm
from threeloops.inner.kernels.rows import tiles as row_tiles
from threeloops.inner.kernels.rows.layernorm import _layernorm_forward, cost, layernorm, reference
from threeloops.inner.kernels.rows.tiles import LONGEST_ROW, LONGEST_ROW_OF_TWO
from torch.nn import functional

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = ((1, 2), (127, 129), (129, 127), (3, 4096), (2, 3, 128), (3, LONGEST_ROW_OF_TWO + 129))


def torch_layernorm(x, weight, bias):
    return functional.layer_norm(x, (x.shape[-1],), weight, bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values(normal, as_accurate_as, gradients, shape, dtype):
    x, dy = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=3)
    weight, bias = (normal(shape[-1], dtype=dtype, seed=seed) for seed in (1, 2))
    inputs = [x, weight, bias]
    as_accurate_as(layernorm(*inputs), torch_layernorm(*(each.double() for each in inputs)), torch_layernorm(*inputs))
    exact = gradients(torch_layernorm, inputs, dy, exact=True)
    peer = gradients(torch_layernorm, inputs, dy)
    for what, *each in zip(("dx", "dweight", "dbias"), gradients(layernorm, inputs, dy), exact, peer, strict=True):
        as_accurate_as(*each, what=what)


@pytest.mark.parametrize("columns", (1000, LONGEST_ROW + 1))
def test_rows_far_from_zero_keep_their_digits(normal, columns):
    x = normal(3, columns) + 4096.0  # mean(x²) − mean(x)² in float32 would be off by about 1
    weight, bias = torch.ones_like(x[0]), torch.zeros_like(x[0])
    exact = torch_layernorm(x.double(), weight.double(), bias.double()).float()
    torch.testing.assert_close(layernorm(x, weight, bias), exact, rtol=0, atol=2e-3)
    _, mean, scale = _layernorm_forward(x, weight, bias)
    torch.testing.assert_close(mean, x.double().mean(-1).float(), rtol=1e-6, atol=0)
    variance = x.double().var(-1, correction=0)
    torch.testing.assert_close(scale, torch.rsqrt(variance + 1e-5).float(), rtol=1e-5, atol=0)


def test_references(normal):
    x, dy = normal(5, 33).double(), normal(5, 33, seed=3).double()
    weight, bias = (normal(33, seed=seed).double() for seed in (1, 2))
    torch.testing.assert_close(reference(x, weight, bias), torch_layernorm(x, weight, bias))
    leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
    expected = torch.autograd.grad(torch_layernorm(*leaves), leaves, dy)
    variance, mean = torch.var_mean(x, -1, correction=0)
    ours = rows_layernorm.backward_reference(dy, x, weight, mean, torch.rsqrt(variance + 1e-5))
    torch.testing.assert_close(ours, expected)


def test_the_gradient_of_many_long_rows_is_that_of_short_ones(normal, monkeypatch):
    x, weight, dy = normal(300, 256), normal(256, seed=1), normal(300, 256, seed=2)
    _, mean, scale = _layernorm_forward(x, weight, weight)
    short = rows_layernorm.layernorm_backward(dy, x, weight, mean, scale)
    monkeypatch.setattr(row_tiles, "LONGEST_ROW_OF_TWO", 255)
    torch.testing.assert_close(rows_layernorm.layernorm_backward(dy, x, weight, mean, scale), short)


def test_rows_of_one_element_are_the_bias(normal):
    x, bias = normal(129, 1).requires_grad_(), normal(1, seed=1)
    y = layernorm(x, torch.ones_like(bias), bias)
    assert torch.equal(y, bias.expand(129, 1))
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_strides(normal):
    x, weight, bias = normal(130, 140), normal(140, seed=1), normal(140, seed=2)
    for view in (x[::2], x[:, :131], x.reshape(10, 13, 140).transpose(0, 1)):
        columns = view.shape[-1]
        y = layernorm(view, weight[:columns], bias[:columns])
        torch.testing.assert_close(y, torch_layernorm(view, weight[:columns], bias[:columns]))
        assert y.is_contiguous()


def test_empty(device):
    x = torch.empty(0, 5, device=device).requires_grad_()
    weight, bias = (torch.ones(5, device=device).requires_grad_() for _ in range(2))
    layernorm(x, weight, bias).sum().backward()
    assert x.grad.shape == (0, 5) and not weight.grad.any() and not bias.grad.any()


def test_other_vectors_are_refused(normal):
    with pytest.raises(ValueError, match=r"bias has shape \(4,\): expected \(5,\)"):
        layernorm(normal(3, 5), normal(5), normal(4))
    with pytest.raises(ValueError, match="bias is float16 and weight is float32"):
        layernorm(normal(3, 5), normal(5), normal(5, dtype=torch.float16))


def test_traffic(entry, least_traffic):
    least_traffic(entry("layernorm"))
    least_traffic(entry("layernorm_backward"))


def test_requested_bytes(interpreted, normal, monkeypatch):
    from threeloops.inner.meter import meter

    rows, columns, tiles = 64, 4096, 16
    x, weight, bias = normal(rows, columns, dtype=torch.float16), *(normal(columns, dtype=torch.float16),) * 2
    monkeypatch.setattr(row_tiles, "tiles_per_program", lambda rows, columns: tiles)
    with meter() as traffic:
        _layernorm_forward(x, weight, bias.clone())
    assert traffic.total.requested_bytes == 2 * columns * (2 * rows + 2 * rows // tiles) + 8 * rows
    assert traffic.total.unique_bytes == cost(rows, columns).bytes


def test_code(entry, clean_code):
    clean_code(entry("layernorm"), "sm_90")
    kernel, *_ = clean_code(entry("layernorm_backward"), "sm_90")
    assert kernel.async_copies  # the next rows are on their way while one is worked on
