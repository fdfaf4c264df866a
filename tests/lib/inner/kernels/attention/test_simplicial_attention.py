"""2-simplicial attention: as accurate as einsum in the same dtype; rows that are pairs waste little and read little."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.attention.simplicial_attention import (
    _triples,
    backward_cost,
    cost,
    reference,
    simplicial_attention,
)
from threeloops.inner.kernels.attention.simplicial_problem import problem_of
from threeloops.inner.kernels.attention.sizes import pairs_in_window
from threeloops.inner.kernels.catalog.sparse_functions import gathered_windows
from threeloops.inner.meter import meter
from tile_traffic import TiledTraffic, simplicial

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
NAMES = ("output", "dq", "dk1", "dk2", "dv1", "dv2")
small = st.integers(1, 40)


def case(normal, batch, heads, kv_heads, length, head_dim, dtype, seed=0):
    """q, k1, k2, v1, v2 and a gradient of the output."""
    of_each = [heads, *[kv_heads] * 4, heads]
    return [normal(batch, n, length, head_dim, dtype=dtype, seed=seed + i) for i, n in enumerate(of_each)]


def with_gradients(function, tensors, *windows, dtype=None):
    """Output and gradients of q, k1, k2, v1, v2."""
    *inputs, gradient = (each.to(dtype) if dtype else each for each in tensors)
    inputs = [each.clone().requires_grad_() for each in inputs]
    output = function(*inputs, *windows)
    output.backward(gradient)
    return output.detach(), *(each.grad for each in inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "length", "head_dim", "window1", "window2"),
    [(1, 2, 1, 65, 64, 30, 8), (2, 1, 1, 33, 32, 20, 5), (1, 1, 1, 65, 128, 33, 2)],
)
def test_as_accurate_as_einsum(
    normal, as_accurate_as, dtype, batch, heads, kv_heads, length, head_dim, window1, window2
):
    # The gradients have a few large elements, and errors to match: four draws are judged together.
    results = []
    for seed in (0, 10, 20, 30):
        tensors = case(normal, batch, heads, kv_heads, length, head_dim, dtype, seed)
        actual = with_gradients(simplicial_attention, tensors, window1, window2)
        exact = with_gradients(reference, tensors, window1, window2, dtype=torch.float64)
        peer = with_gradients(reference, tensors, window1, window2)
        results.append((actual, exact, peer))
    for index, what in enumerate(NAMES):
        ours, truth, theirs = (torch.stack([result[which][index] for result in results]) for which in range(3))
        as_accurate_as(ours, truth, theirs, what=what)


@pytest.mark.parametrize(("window1", "window2"), [(20, 6), (6, 20), (1, 1)])
def test_either_window_may_be_the_smaller(normal, window1, window2):
    tensors = case(normal, 1, 1, 1, 37, 32, torch.float32)
    actual = with_gradients(simplicial_attention, tensors, window1, window2)
    expected = with_gradients(reference, tensors, window1, window2, dtype=torch.float64)
    for what, ours, truth in zip(NAMES, actual, expected, strict=True):
        assert (ours - truth).abs().max() < 1e-4 * max(1, truth.abs().max()), what


def test_windows_that_are_longer_than_the_sequence_and_take_several_chunks_of_rows(normal):
    """As do those of more than 128 positions with the shipped tiles."""
    tensors = case(normal, 1, 2, 1, 34, 32, torch.float32)
    q, *keys, _ = tensors
    problem = problem_of(q, *keys, 50, 50)
    assert problem.chunks(problem.shipped.forward) == 2, "this test is about two chunks"
    actual = with_gradients(simplicial_attention, tensors, 50, 50)
    expected = with_gradients(reference, tensors, 50, 50, dtype=torch.float64)
    for what, ours, truth in zip(NAMES, actual, expected, strict=True):
        assert (ours - truth).abs().max() < 1e-4 * max(1, truth.abs().max()), what


def test_one_token_multiplies_its_values(normal):
    q, k1, k2, v1, v2, _ = case(normal, 1, 2, 2, 1, 64, torch.float32)
    assert torch.equal(simplicial_attention(q, k1, k2, v1, v2, 3, 3), v1 * v2)


def test_with_neutral_second_keys_it_is_sliding_window_attention(normal):
    q, k1, _, v1, _, _ = case(normal, 1, 1, 1, 60, 64, torch.float32)
    ones = torch.ones_like(k1)
    actual = simplicial_attention(q, k1, ones, v1, ones, 20, 7)
    ago = torch.arange(60)[:, None] - torch.arange(60)
    visible = ((ago >= 0) & (ago < 20)).to(q.device)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k1, v1, attn_mask=visible)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_softmax_scale(normal):
    q, k1, k2, v1, v2, _ = case(normal, 1, 1, 1, 20, 32, torch.float32)
    actual = simplicial_attention(q, k1, k2, v1, v2, 6, 4, softmax_scale=0.7)
    torch.testing.assert_close(actual, reference(q, k1, k2, v1, v2, 6, 4, softmax_scale=0.7), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(actual, simplicial_attention(q, k1, k2, v1, v2, 6, 4), rtol=1e-2)


def test_gathering_the_windows_is_the_same(normal):
    *inputs, _ = case(normal, 2, 4, 2, 30, 32, torch.float64)
    for windows in ((7, 3), (3, 7), (40, 1)):
        torch.testing.assert_close(gathered_windows(*inputs, *windows), reference(*inputs, *windows))


@given(small, small, small)
def test_pairs_and_triples_in_closed_form(length, window1, window2):
    assert pairs_in_window(length, window1) == sum(min(i + 1, window1) for i in range(length))
    assert _triples(length, window1, window2) == sum(min(i + 1, window1) * min(i + 1, window2) for i in range(length))


@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "length", "head_dim", "window1", "window2", "dtype"),
    [
        (1, 2, 1, 100, 64, 40, 8, torch.float16),
        (2, 1, 1, 97, 32, 33, 5, torch.bfloat16),
        (1, 2, 2, 70, 128, 1000, 3, torch.bfloat16),
        (1, 1, 1, 40, 64, 20, 33, torch.float32),
    ],
)
def test_traffic_is_that_of_the_tiles(
    interpreted, normal, batch, heads, kv_heads, length, head_dim, window1, window2, dtype
):
    *inputs, gradient = case(normal, batch, heads, kv_heads, length, head_dim, dtype)
    inputs = [each.requires_grad_() for each in inputs]
    with meter() as traffic:
        simplicial_attention(*inputs, window1, window2).backward(gradient)
    problem = problem_of(*inputs, max(window1, window2), min(window1, window2))
    counted = [TiledTraffic(each.requested_loaded, each.requested_stored, each.dot_flops) for each in traffic.launches]
    assert counted == simplicial(problem)
    least = cost(problem) + backward_cost(problem)
    assert not traffic.findings and traffic.total.atomics == 0
    assert traffic.total.unique_bytes == pytest.approx(least.bytes, rel=0.02)


def test_rows_that_are_pairs_waste_little():
    """Of the products in the forward kernel's tiles, at the paper's windows, few have a triple that is hidden."""
    q = torch.empty(1, 1, 8192, 128, dtype=torch.bfloat16, device="meta")
    problem = problem_of(q, q, q, q, q, 512, 32)
    assert 4 * 128 * _triples(8192, 512, 32) / simplicial(problem)[0].dot_flops > 0.85


def test_intensity_is_a_third_of_the_product_of_the_windows():
    q = torch.empty(1, 8, 65536, 128, dtype=torch.bfloat16, device="meta")
    assert cost(problem_of(q, q, q, q, q, 512, 32)).intensity == pytest.approx(512 * 32 / 3, rel=0.05)


def test_same_bits_every_time(normal):
    tensors = case(normal, 1, 2, 1, 50, 32, torch.bfloat16)
    first, second = (with_gradients(simplicial_attention, tensors, 20, 8) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_any_strides(normal):
    packed = normal(1, 30, 5, 2, 32, dtype=torch.float16)
    inputs = packed.permute(2, 0, 3, 1, 4).unbind(0)
    expected = simplicial_attention(*(each.contiguous() for each in inputs), 9, 4)
    assert torch.equal(simplicial_attention(*inputs, 9, 4), expected)


@pytest.mark.parametrize(("batch", "length"), [(0, 5), (1, 0)])
def test_nothing_to_attend(device, batch, length):
    inputs = [torch.empty(batch, 2, length, 64, device=device, requires_grad=True) for _ in range(5)]
    output = simplicial_attention(*inputs, 4, 2)
    output.sum().backward()
    assert output.shape == inputs[0].shape and all(each.grad.shape == each.shape for each in inputs)


def test_refusals(normal):
    q, k1, k2, v1, v2, _ = case(normal, 1, 2, 2, 16, 64, torch.float16)
    for message, call in (
        ("window1 = 0", lambda: simplicial_attention(q, k1, k2, v1, v2, 0, 0)),
        ("window2 = -1", lambda: simplicial_attention(q, k1, k2, v1, v2, 4, -1)),
        ("head_dim = 48", lambda: simplicial_attention(*(each[..., :48] for each in (q, k1, k2, v1, v2)), 4, 2)),
        ("v2 has shape", lambda: simplicial_attention(q, k1, k2, v1, v2[:, :1], 4, 2)),
        ("k1 is float32 and q is float16", lambda: simplicial_attention(q, k1.float(), k2, v1, v2, 4, 2)),
        ("softmax_scale = nan", lambda: simplicial_attention(q, k1, k2, v1, v2, 4, 2, softmax_scale=float("nan"))),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("head_dim", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_code_for_the_h100(head_dim):
    def call():
        inputs = [torch.empty(1, 2, 1024, head_dim, dtype=torch.bfloat16, device="meta") for _ in range(5)]
        inputs[0].requires_grad_()
        simplicial_attention(*inputs, 512, 32).backward(torch.empty_like(inputs[0]))

    for code in inspect(call, "sm_90"):
        assert code.fits and not code.spills and code.tensor_cores == "wgmma", code.report()
        # Outputs of a few positions are stored by all threads, a few bytes each: there is too little for 128 bits.
        assert code.widest_load == 128, code.report()
