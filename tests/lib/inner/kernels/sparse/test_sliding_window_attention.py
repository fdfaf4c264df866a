"""Sliding-window attention: as accurate as PyTorch's under a mask, and what the window hides is not even loaded."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.attention.sizes import sizes_of
from threeloops.inner.kernels.sparse.sliding_window_attention import (
    backward_cost,
    cost,
    reference,
    sliding_window_attention,
)
from threeloops.inner.kernels.sparse.sliding_window_traffic import _visible_pairs
from threeloops.inner.meter import meter
from tile_traffic import TiledTraffic, sliding_window, window_key_tiles, window_query_tiles
from torch.nn.functional import scaled_dot_product_attention

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
small = st.integers(1, 70)


def case(normal, batch, heads, kv_heads, length, head_dim, dtype, seed=0):
    """q, k, v and a gradient of the output."""
    shapes = [(batch, each, length, head_dim) for each in (heads, kv_heads, kv_heads, heads)]
    return [normal(*shape, dtype=dtype, seed=seed + index) for index, shape in enumerate(shapes)]


def with_gradients(function, tensors, *options, dtype=None, **keywords):
    """Output and gradients of q, k, v."""
    *inputs, gradient = (each.to(dtype) if dtype else each for each in tensors)
    inputs = [each.clone().requires_grad_() for each in inputs]
    output = function(*inputs, *options, **keywords)
    output.backward(gradient)
    return output.detach(), *(each.grad for each in inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "length", "head_dim", "window", "sinks"),
    [(2, 2, 1, 127, 64, 30, 0), (1, 2, 2, 128, 128, 64, 0), (1, 4, 2, 129, 64, 5, 0), (1, 1, 1, 300, 32, 65, 7)],
)
def test_as_accurate_as_pytorch(normal, as_accurate_as, dtype, batch, heads, kv_heads, length, head_dim, window, sinks):
    tensors = case(normal, batch, heads, kv_heads, length, head_dim, dtype)
    actual = with_gradients(sliding_window_attention, tensors, window, sinks=sinks)
    exact = with_gradients(reference, tensors, window, sinks=sinks, dtype=torch.float64)
    peer = with_gradients(reference, tensors, window, sinks=sinks)
    for what, ours, truth, theirs in zip(("output", "dq", "dk", "dv"), actual, exact, peer, strict=True):
        as_accurate_as(ours, truth, theirs, what=what)


@pytest.mark.parametrize(("length", "window"), [(1, 5), (40, 1)])
def test_a_query_that_sees_only_itself_gets_its_value(normal, length, window):
    tensors = case(normal, 1, 2, 2, length, 64, torch.float32)
    output, dq, dk, dv = with_gradients(sliding_window_attention, tensors, window)
    assert torch.equal(output, tensors[2])
    torch.testing.assert_close(dv, tensors[3], rtol=1e-5, atol=1e-5)
    assert dq.abs().max() < 1e-4 and dk.abs().max() < 1e-4


def test_a_window_over_everything_is_causal_attention(normal, as_accurate_as):
    q, k, v, _ = case(normal, 1, 2, 2, 129, 64, torch.float16)
    peer = scaled_dot_product_attention(q, k, v, is_causal=True)
    exact = scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    for window in (129, 1000):
        as_accurate_as(sliding_window_attention(q, k, v, window), exact, peer)


def test_softmax_scale(normal):
    q, k, v, _ = case(normal, 1, 1, 1, 40, 64, torch.float32)
    actual = sliding_window_attention(q, k, v, 9, softmax_scale=0.5)
    torch.testing.assert_close(actual, reference(q, k, v, 9, softmax_scale=0.5))
    assert not torch.allclose(actual, sliding_window_attention(q, k, v, 9))


def test_what_has_left_the_window_is_not_loaded(normal):
    """NaN in a masked key or value would still reach the output: 0 · NaN is NaN."""
    q, k, v, _ = case(normal, 1, 1, 1, 640, 64, torch.float16)
    window = 64
    expected = sliding_window_attention(q, k, v, window)
    first_tile_without_old_keys = 384
    for each in (k, v):
        each[:, :, : first_tile_without_old_keys - 128] = float("nan")
    late = sliding_window_attention(q, k, v, window)[:, :, first_tile_without_old_keys:]
    assert torch.equal(late, expected[:, :, first_tile_without_old_keys:])


@given(small, small, st.sampled_from((1, 4, 16)), st.sampled_from((1, 4, 16)), st.integers(0, 20))
def test_visited_tiles_are_those_with_a_visible_pair(length, window, block_m, block_n, sinks):
    position = torch.arange(length)
    ago = position[:, None] - position[None, :]
    visible = (ago >= 0) & ((ago < window) | (position < sinks))
    assert _visible_pairs(length, window, sinks) == visible.sum()
    tiles, keys, queries = 0, 0, 0
    for first_query in range(0, length, block_m):
        for first_key in range(0, length, block_n):
            tile = visible[first_query : first_query + block_m, first_key : first_key + block_n]
            if tile.any():
                tiles, keys, queries = tiles + 1, keys + tile.shape[1], queries + tile.shape[0]
    assert window_key_tiles(length, window, block_m, block_n, sinks) == (tiles, keys)
    if not sinks:  # from the side of the keys, a tile with any sink is visited by all queries from its own on
        assert window_query_tiles(length, window, block_m, block_n) == (tiles, queries)


@given(st.integers(1, 40), st.integers(0, 40))
def test_visited_square_tiles_in_closed_form(tiles, window_tiles):
    block, window_tiles = 8, min(window_tiles, tiles - 1)
    visited, _ = window_key_tiles(tiles * block, max(window_tiles * block, 1), block, block)
    # A window of w whole tiles reaches one key into the tile before them, but for a window of 1.
    expected = (window_tiles + 1) * tiles - window_tiles * (window_tiles + 1) // 2
    assert visited == expected


@pytest.mark.parametrize(
    ("length", "window", "sinks", "dtype"),
    [
        (256, 64, 0, torch.bfloat16),
        (512, 64, 0, torch.float16),
        (512, 200, 0, torch.float16),
        (321, 100, 3, torch.float16),
        (130, 40, 0, torch.float32),
    ],
)
def test_traffic_is_that_of_visited_tiles(interpreted, normal, length, window, sinks, dtype):
    *inputs, gradient = case(normal, 1, 2, 1, length, 64, dtype)
    q, k, v = (each.requires_grad_() for each in inputs)
    sizes = sizes_of(q, k, v, 1.0)
    with meter() as traffic:
        sliding_window_attention(q, k, v, window, sinks=sinks).backward(gradient)
    counted = [TiledTraffic(each.requested_loaded, each.requested_stored, each.dot_flops) for each in traffic.launches]
    assert counted == sliding_window(sizes, dtype, window, sinks)
    assert not traffic.findings and traffic.total.atomics == 0
    least = cost(sizes, window, dtype.itemsize, sinks=sinks)
    least += backward_cost(sizes, window, dtype.itemsize, sinks=sinks)
    assert traffic.total.unique_bytes == pytest.approx(least.bytes, rel=0.02)


def test_traffic_grows_with_the_window_and_not_with_the_square_of_the_sequence():
    short, long = (sizes_of(*[torch.empty(1, 1, length, 64, device="meta")] * 3, 1.0) for length in (8192, 16384))
    for window in (128, 1024):
        loaded = [sliding_window(sizes, torch.float16, window)[0].loaded for sizes in (short, long)]
        assert 2 <= loaded[1] / loaded[0] < 2.2
    wide, narrow = (sliding_window(long, torch.float16, window)[0].dot_flops for window in (2048, 256))
    assert 4 < wide / narrow < 8


def test_any_strides(normal):
    """(batch, sequence, heads, head_dim), seen as the kernel's layout; and a gradient that is expanded."""
    packed = normal(1, 70, 3, 4, 64, dtype=torch.float16)
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    tensors = [q, k, v, torch.ones(1, 4, 70, 1, dtype=torch.float16, device=q.device).expand(1, 4, 70, 64)]
    inputs = [each.detach().requires_grad_() for each in tensors[:3]]
    output = sliding_window_attention(*inputs, 20)
    output.backward(tensors[3])
    expected = with_gradients(sliding_window_attention, [each.contiguous() for each in tensors], 20)
    for ours, theirs in zip((output, *(each.grad for each in inputs)), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_same_bits_every_time(normal):
    tensors = case(normal, 1, 4, 2, 130, 64, torch.bfloat16)
    first, second = (with_gradients(sliding_window_attention, tensors, 33) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("batch", "length"), [(0, 5), (1, 0)])
def test_nothing_to_attend(device, batch, length):
    q, k, v = (torch.empty(batch, 2, length, 64, device=device, requires_grad=True) for _ in range(3))
    output = sliding_window_attention(q, k, v, 4)
    output.sum().backward()
    assert output.shape == q.shape and q.grad.shape == q.shape


def test_refusals(normal):
    q, k, v, _ = case(normal, 1, 2, 2, 16, 64, torch.float16)
    for message, call in (
        ("window = 0", lambda: sliding_window_attention(q, k, v, 0)),
        ("sinks = -1", lambda: sliding_window_attention(q, k, v, 4, sinks=-1)),
        ("head_dim = 48", lambda: sliding_window_attention(q[..., :48], k[..., :48], v[..., :48], 4)),
        ("softmax_scale = -1", lambda: sliding_window_attention(q, k, v, 4, softmax_scale=-1)),
        ("as long as q", lambda: sliding_window_attention(q, k[:, :, :8], v[:, :, :8], 4)),
        ("k is float32 and q is float16", lambda: sliding_window_attention(q, k.float(), v, 4)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_code_for_the_h100():
    def call():
        q, k, v = (torch.empty(1, heads, 512, 128, dtype=torch.bfloat16, device="meta") for heads in (4, 2, 2))
        q.requires_grad_()
        sliding_window_attention(q, k, v, 256).backward(torch.empty_like(q))

    for code in inspect(call, "sm_90"):
        assert code.fits and not code.spills and code.tensor_cores == "wgmma", code.report()
        assert code.widest_load == code.widest_store == 128, code.report()
