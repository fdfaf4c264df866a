"""RMSNorm, forward and backward."""

import pytest
import torch
from threeloops.inner.kernels.rows import rmsnorm as rows_rmsnorm
from threeloops.inner.kernels.rows import tiles as row_tiles
from threeloops.inner.kernels.rows.rmsnorm import _rmsnorm_forward, cost, reference, rmsnorm
from threeloops.inner.kernels.rows.tiles import (
    LONGEST_ROW,
    LONGEST_ROW_OF_TWO,
    _share_rows,
    partial_sums,
    row_tile,
    tiles_per_program,
)
from torch.nn import functional

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = ((1, 2), (127, 129), (129, 127), (3, 4096), (2, 3, 128), (3, LONGEST_ROW_OF_TWO + 129))


def torch_rmsnorm(x, weight):
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values(normal, as_accurate_as, gradients, shape, dtype):
    x, weight = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype, seed=1)
    dy = normal(*shape, dtype=dtype, seed=2)
    as_accurate_as(rmsnorm(x, weight), torch_rmsnorm(x.double(), weight.double()), torch_rmsnorm(x, weight))
    exact = gradients(torch_rmsnorm, [x, weight], dy, exact=True)
    peer = gradients(torch_rmsnorm, [x, weight], dy)
    for what, *each in zip(("dx", "dweight"), gradients(rmsnorm, [x, weight], dy), exact, peer, strict=True):
        as_accurate_as(*each, what=what)


def test_rows_of_one_element_keep_their_sign_and_nothing_else(normal, gradients):
    x, weight, dy = normal(129, 1), normal(1, seed=1), normal(129, 1, seed=2)
    x = x + 0.1 * x.sign()
    torch.testing.assert_close(rmsnorm(x, weight), x.sign() * weight, rtol=1e-4, atol=0)
    dx, dweight = gradients(rmsnorm, [x, weight], dy)
    assert dx.abs().max() < 1e-2  # terms of size 1 / |x| that cancel
    torch.testing.assert_close(dweight, (dy * x.sign()).sum(0), rtol=1e-4, atol=1e-3)


def test_references(normal):
    x, weight, dy = normal(5, 33).double(), normal(33, seed=1).double(), normal(5, 33, seed=2).double()
    torch.testing.assert_close(reference(x, weight), torch_rmsnorm(x, weight))
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    expected = torch.autograd.grad(torch_rmsnorm(*leaves), leaves, dy)
    scale = torch.rsqrt(x.square().mean(-1) + 1e-6)
    torch.testing.assert_close(rows_rmsnorm.backward_reference(dy, x, weight, scale), expected)


def test_rows_longer_than_registers(normal):
    x, weight = normal(2, LONGEST_ROW + 1), normal(LONGEST_ROW + 1, seed=1)
    torch.testing.assert_close(rmsnorm(x, weight), torch_rmsnorm(x, weight))
    _, scale = _rmsnorm_forward(x, weight)
    torch.testing.assert_close(scale, torch.rsqrt(x.square().mean(-1) + 1e-6))


def test_the_gradient_of_many_long_rows_is_that_of_short_ones(normal, monkeypatch):
    x, weight, dy = normal(300, 256), normal(256, seed=1), normal(300, 256, seed=2)
    _, scale = _rmsnorm_forward(x, weight)
    short = rows_rmsnorm.rmsnorm_backward(dy, x, weight, scale)
    monkeypatch.setattr(row_tiles, "LONGEST_ROW_OF_TWO", 255)
    torch.testing.assert_close(rows_rmsnorm.rmsnorm_backward(dy, x, weight, scale), short)
    assert row_tiles._TILE.constants["ROWS"] * row_tiles._LARGEST_STACK < 300  # more than one partial sum


def test_float32_weight_with_16_bit_rows(normal):
    x, weight = normal(5, 130, dtype=torch.bfloat16), normal(130, seed=1).requires_grad_()
    y = rmsnorm(x, weight)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert weight.grad.dtype == torch.float32


def test_strides(normal):
    x, weight = normal(130, 140), normal(140, seed=1)
    for view in (x[::2], x[:, :131], x.reshape(10, 13, 140).transpose(0, 1), x.expand(2, 130, 140)):
        ours, theirs = (view.detach().requires_grad_() for _ in range(2))
        y, expected = rmsnorm(ours, weight[: view.shape[-1]]), torch_rmsnorm(theirs, weight[: view.shape[-1]])
        torch.testing.assert_close(y, expected)
        dy = torch.randn(expected.shape[::-1], device=x.device).permute(*reversed(range(expected.ndim)))
        torch.testing.assert_close(*(torch.autograd.grad(*each, dy)[0] for each in ((y, ours), (expected, theirs))))


def test_the_weight_s_gradient_is_the_same_in_every_run(normal):
    x, weight, dy = normal(700, 128), normal(128, seed=1), normal(700, 128, seed=2)
    _, scale = _rmsnorm_forward(x, weight)
    first, second = (rows_rmsnorm.rmsnorm_backward(dy, x, weight, scale)[1] for _ in range(2))
    assert torch.equal(first, second)


def test_partial_sums(normal):
    partials = normal(129, 67)
    torch.testing.assert_close(partial_sums(partials, torch.float32), partials.sum(0))
    assert partial_sums(partials, torch.float16).dtype == torch.float16


def test_empty(device):
    x, weight = torch.empty(0, 5, device=device).requires_grad_(), torch.ones(5, device=device).requires_grad_()
    rmsnorm(x, weight).sum().backward()
    assert x.grad.shape == (0, 5) and torch.equal(weight.grad, torch.zeros_like(weight))


def test_other_weights_are_refused(normal):
    with pytest.raises(ValueError, match=r"weight has shape \(4,\): expected \(5,\)"):
        rmsnorm(normal(3, 5), normal(4))


def test_traffic(entry, least_traffic):
    least_traffic(entry("rmsnorm"))
    least_traffic(entry("rmsnorm_backward"))


@pytest.mark.parametrize(("tiles", "more"), ((1, 0.5), (32, 0.5 / 32)))
def test_a_program_that_keeps_the_weight_asks_for_it_less_often(interpreted, normal, monkeypatch, tiles, more):
    from threeloops.inner.meter import meter

    rows, columns = 64, 4096
    assert row_tile(columns).constants["ROWS"] == 1
    x, weight = normal(rows, columns, dtype=torch.float16), normal(columns, dtype=torch.float16)
    monkeypatch.setattr(row_tiles, "tiles_per_program", lambda rows, columns: tiles)
    with meter() as traffic:
        _rmsnorm_forward(x, weight)
    total = traffic.total
    assert total.requested_bytes == 2 * columns * (2 * rows + rows // tiles) + 4 * rows
    assert total.unique_bytes == cost(rows, columns).bytes
    assert total.requested_bytes / (2 * 2 * rows * columns) == pytest.approx(1 + more, rel=1e-3)


def test_enough_programs_for_every_multiprocessor():
    for rows in (1, 100, 1056, 5000, 10**6):
        for columns in (64, 1024, 4096, 16384):
            programs = rows / (tiles_per_program(rows, columns) * row_tile(columns).constants["ROWS"])
            assert programs >= 8 * 132 or tiles_per_program(rows, columns) == 1
    for rows, rows_per_tile in ((1, 1), (700, 2), (10**6, 1), (10**6, 64)):
        programs, tiles = _share_rows(rows, rows_per_tile)
        assert programs <= 2 * 132 and (programs - 1) * tiles * rows_per_tile < rows <= programs * tiles * rows_per_tile


def test_code(entry, clean_code):
    clean_code(entry("rmsnorm"), "sm_90")
    kernel, _ = clean_code(entry("rmsnorm_backward"), "sm_90")
    assert kernel.async_copies  # the next rows are on their way while one is worked on
