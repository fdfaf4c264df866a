"""FlashAttention: as accurate as PyTorch's own, forward and backward, with the traffic of its tiles and no more."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.codegen import inspect
from threeloops.inner.costs import visible_pairs
from threeloops.inner.kernels.attention.flash_attention import flash_attention, reference
from threeloops.inner.kernels.attention.flash_attention_backward import _ROWS
from threeloops.inner.kernels.attention.flash_attention_traffic import backward_cost
from threeloops.inner.kernels.attention.sizes import AttentionSizes, cost, shipped
from threeloops.inner.kernels.catalog import attention
from threeloops.inner.kernels.launching import TARGETS, compiling_for
from threeloops.inner.meter import meter
from tile_traffic import TiledTraffic, flash_attention_backward
from tile_traffic import flash_attention as tile_traffic
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ENTRIES = {entry.name: entry for entry in attention.entries()}
small = st.integers(1, 70)


def case(normal, batch, heads, kv_heads, queries, keys, head_dim, dtype, seed=0):
    """q, k, v and a gradient of the output."""
    shapes = [(heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries)]
    return [normal(batch, *each, head_dim, dtype=dtype, seed=seed + i) for i, each in enumerate(shapes)]


def with_gradients(function, tensors, *options, dtype=None, **keywords):
    """Output and gradients of q, k, v."""
    *inputs, gradient = (each.to(dtype) if dtype else each for each in tensors)
    inputs = [each.clone().requires_grad_() for each in inputs]
    output = function(*inputs, *options, **keywords)
    output.backward(gradient)
    return output.detach(), *(each.grad for each in inputs)


def naive(q, k, v, causal):
    """Attention written down once more, for this test: nothing shared with the library."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    i, j = torch.arange(q.shape[2], device=q.device), torch.arange(k.shape[2], device=q.device)
    if causal:
        scores = scores.masked_fill(j[None, :] - i[:, None] > k.shape[2] - q.shape[2], float("-inf"))
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "queries", "keys", "head_dim"),
    [
        (1, 4, 2, 1, 127, 64),
        (2, 2, 1, 129, 129, 64),
        (1, 2, 2, 128, 128, 128),
        (1, 3, 1, 127, 300, 32),
        (8, 1, 1, 65, 65, 16),  # a batch: which of only 1,040 errors is the largest is a matter of luck
    ],
)
def test_as_accurate_as_pytorch(normal, as_accurate_as, dtype, causal, batch, heads, kv_heads, queries, keys, head_dim):
    tensors = case(normal, batch, heads, kv_heads, queries, keys, head_dim, dtype)
    actual = with_gradients(flash_attention, tensors, causal=causal)
    exact = with_gradients(naive, tensors, causal, dtype=torch.float64)
    peer = with_gradients(attention._torch_attention, tensors, causal)
    for what, ours, truth, theirs in zip(("output", "dq", "dk", "dv"), actual, exact, peer, strict=True):
        as_accurate_as(ours, truth, theirs, what=what)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_as_accurate_as_the_math_backend(normal, as_accurate_as, dtype):
    q, k, v, _ = case(normal, 2, 2, 2, 200, 200, 64, dtype)
    with sdpa_kernel(SDPBackend.MATH):
        peer = attention._torch_attention(q, k, v, False)
    as_accurate_as(flash_attention(q, k, v), naive(q.double(), k.double(), v.double(), False), peer)


def test_a_long_ragged_sequence(normal, as_accurate_as):
    tensors = case(normal, 1, 1, 1, 2049, 2049, 64, torch.bfloat16)
    actual = with_gradients(flash_attention, tensors, causal=True)
    exact = with_gradients(naive, tensors, True, dtype=torch.float64)
    peer = with_gradients(attention._torch_attention, tensors, True)
    for what, ours, truth, theirs in zip(("output", "dq", "dk", "dv"), actual, exact, peer, strict=True):
        as_accurate_as(ours, truth, theirs, what=what)


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (64, 32), (32, 128)])
def test_result_does_not_depend_on_the_tiles(normal, block_m, block_n):
    q, k, v, _ = case(normal, 1, 1, 1, 100, 130, 32, torch.float32)
    for causal in (False, True):
        expected, expected_lse = flash_attention(q, k, v, causal=causal, return_lse=True)
        actual, lse = flash_attention(q, k, v, causal=causal, return_lse=True, block_m=block_m, block_n=block_n)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse, expected_lse, rtol=1e-5, atol=1e-5)


def test_causal_is_aligned_at_the_end(normal):
    """A chunk of queries after a prefix gets what the whole sequence gets; so does one query."""
    q, k, v, _ = case(normal, 1, 2, 1, 150, 150, 64, torch.float32)
    whole = flash_attention(q, k, v, causal=True)
    for last in (1, 37):
        chunk = flash_attention(q[:, :, -last:], k, v, causal=True)
        torch.testing.assert_close(chunk, whole[:, :, -last:], rtol=1e-5, atol=1e-5)


def test_rows_that_see_nothing_give_zero(normal):
    tensors = case(normal, 1, 2, 1, 300, 127, 64, torch.float16)
    unseen = 300 - 127
    output, dq, dk, dv = with_gradients(flash_attention, tensors, causal=True)
    assert not output[:, :, :unseen].any() and not dq[:, :, :unseen].any()
    _, lse = flash_attention(*tensors[:3], causal=True, return_lse=True)
    assert lse[:, :, :unseen].isneginf().all() and lse[:, :, unseen:].isfinite().all()
    q, k, v, gradient = tensors
    seeing = with_gradients(flash_attention, (q[:, :, unseen:], k, v, gradient[:, :, unseen:]), causal=True)
    for name, ours, expected in zip(
        ("output", "dq", "dk", "dv"), (output[:, :, unseen:], dq[:, :, unseen:], dk, dv), seeing, strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-2, atol=1e-2, msg=lambda text, name=name: f"{name}: {text}")
    expected = reference(q, k, v, causal=True)
    torch.testing.assert_close(output, expected, rtol=1e-2, atol=1e-2)


def test_log_sum_exp_and_its_gradient(normal):
    """Results over two parts of the keys combine into the whole, and so do their gradients."""
    q, k, v, gradient = (each.requires_grad_() for each in case(normal, 1, 2, 1, 70, 150, 64, torch.float32))
    whole, lse = flash_attention(q, k, v, return_lse=True)
    scores = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(2, 1)) / 8
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=1e-5, atol=1e-5)

    parts = [flash_attention(q, k[:, :, cut], v[:, :, cut], return_lse=True) for cut in (slice(90), slice(90, None))]
    outputs, sums = (torch.stack(each) for each in zip(*parts, strict=True))
    combined = (outputs * sums.softmax(0)[..., None]).sum(0)
    torch.testing.assert_close(combined, whole, rtol=1e-5, atol=1e-5)
    actual = torch.autograd.grad(combined, (q, k, v), gradient)
    expected = torch.autograd.grad(whole, (q, k, v), gradient, retain_graph=True)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    (only_lse,) = torch.autograd.grad(lse.sum(), q)
    (expected,) = torch.autograd.grad(scores.logsumexp(-1).sum(), q)
    torch.testing.assert_close(only_lse, expected, rtol=1e-4, atol=1e-5)


def test_softmax_scale_and_large_scores(normal):
    q, k, v, _ = case(normal, 1, 1, 1, 40, 40, 64, torch.float32)
    actual = flash_attention(q, k, v, softmax_scale=20.0)
    exact = naive(q.double() * 160, k.double(), v.double(), False)
    torch.testing.assert_close(actual.double(), exact, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(actual, flash_attention(q, k, v))
    shifted = flash_attention(q, k - 1000 * q.mean(2, keepdim=True), v)
    assert shifted.isfinite().all()


def test_strides_and_layout_of_the_result(normal):
    """The projections of a model come as (batch, sequence, heads, head_dim): no copy, and the result lies likewise."""
    qkv = normal(2, 70, 3, 4, 32, dtype=torch.float32)
    views = [each.transpose(1, 2) for each in qkv.unbind(2)]
    output, *gradients = with_gradients(flash_attention, [*views, normal(2, 4, 70, 32, seed=1)])
    copies = [each.contiguous() for each in views]
    expected, *expected_gradients = with_gradients(flash_attention, [*copies, normal(2, 4, 70, 32, seed=1)])
    assert torch.equal(output, expected)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(ours, theirs)
    separate = [normal(2, 70, 4, 32, seed=seed).transpose(1, 2) for seed in range(3)]
    assert flash_attention(*separate).stride() == separate[0].stride()
    columns = [each.mT.contiguous().mT for each in copies]
    assert torch.equal(flash_attention(*columns), expected)
    shared = copies[1][:, :1].expand(2, 4, 70, 32)
    torch.testing.assert_close(
        flash_attention(copies[0], shared, shared), flash_attention(copies[0], *[shared[:, :1]] * 2)
    )


def test_the_same_bits_every_time(normal):
    tensors = case(normal, 1, 4, 2, 130, 130, 64, torch.bfloat16)
    first, second = (with_gradients(flash_attention, tensors, causal=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("length", [256, 512, 1024])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_traffic_grows_as_the_formula_says(interpreted, normal, length, causal):
    q, k, v, _ = case(normal, 1, 2, 1, length, length, 64, torch.float16)
    with meter() as traffic:
        flash_attention(q, k, v, causal=causal)
    tiles, sizes = shipped(torch.float16, 64).forward, AttentionSizes(1, 2, 1, length, length, 64)
    same_traffic(traffic, tile_traffic(sizes, block_m=tiles.rows, block_n=tiles.keys, causal=causal))
    assert traffic.total.unique_bytes == cost(sizes, causal=causal).bytes


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 64), (32, 32), (64, 128), (128, 16), (256, 64)])
@pytest.mark.parametrize(("queries", "keys", "causal"), [(256, 256, True), (100, 300, False), (129, 200, True)])
def test_traffic_over_the_tile_sizes(interpreted, normal, block_m, block_n, queries, keys, causal):
    q, k, v, _ = case(normal, 1, 1, 1, queries, keys, 64, torch.float16)
    with meter() as traffic:
        flash_attention(q, k, v, causal=causal, block_m=block_m, block_n=block_n)
    sizes = AttentionSizes(1, 1, 1, queries, keys, 64)
    same_traffic(traffic, tile_traffic(sizes, block_m=block_m, block_n=block_n, causal=causal))


def same_traffic(traffic, expected):
    (launch,) = traffic.launches
    loaded = {name: launch.arguments[name].requested_loaded for name in "qkv"}
    assert loaded == {"q": expected.q, "k": expected.k, "v": expected.v}
    assert launch.requested_loaded == expected.loaded and launch.requested_stored == expected.stored
    assert launch.dot_flops == expected.dot_flops
    assert not traffic.findings and launch.atomics == 0


@given(small, small, st.sampled_from((1, 4, 16)), st.sampled_from((1, 4, 16)), st.booleans())
def test_visited_tiles_are_those_with_a_visible_pair(queries, keys, block_m, block_n, causal):
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    visible = j - i <= keys - queries if causal else torch.ones(queries, keys, dtype=torch.bool)
    assert visible_pairs(queries, keys, causal) == visible.sum()
    tiles = rows = 0
    for first_query in range(0, queries, block_m):
        for first_key in range(0, keys, block_n):
            tile = visible[first_query : first_query + block_m, first_key : first_key + block_n]
            if tile.any():
                tiles, rows = tiles + 1, rows + tile.shape[1]
    sizes = AttentionSizes(1, 1, 1, queries, keys, 1)
    traffic = tile_traffic(sizes, 1, block_m=block_m, block_n=block_n, causal=causal)
    assert (traffic.k, traffic.v, traffic.dot_flops) == (rows, rows, 4 * tiles * block_m * block_n)


@given(st.integers(1, 64), st.sampled_from((1, 2, 4)))
def test_traffic_of_whole_tiles_in_closed_form(tiles, ratio):
    block_n = 16
    block_m, length = ratio * block_n, tiles * ratio * block_n
    sizes = AttentionSizes(1, 1, 1, length, length, 64)
    full = tile_traffic(sizes, block_m=block_m, block_n=block_n)
    assert full.k == 2 * 64 * length**2 // block_m and full.dot_flops == 4 * 64 * length**2
    causal = tile_traffic(sizes, block_m=block_m, block_n=block_n, causal=True)
    assert causal.k == 2 * 64 * length * (length + block_m) // (2 * block_m)


@pytest.mark.parametrize(("queries", "keys", "causal"), [(256, 256, True), (100, 300, False), (129, 200, True)])
def test_backward_traffic_is_that_of_the_tiles(interpreted, normal, queries, keys, causal):
    tensors = case(normal, 1, 4, 2, queries, keys, 64, torch.float16)
    *inputs, gradient = (each.requires_grad_() for each in tensors)
    output = flash_attention(*inputs, causal=causal)
    with meter() as traffic:
        output.backward(gradient.detach())
    assert len(traffic.launches) == 3
    total, sizes = traffic.total, AttentionSizes(1, 4, 2, queries, keys, 64)
    counted = TiledTraffic(total.requested_loaded, total.requested_stored, total.dot_flops)
    assert counted == flash_attention_backward(sizes, torch.float16, causal=causal)
    assert total.atomics == 0 and not traffic.findings
    least = backward_cost(sizes, causal=causal).bytes
    assert total.unique_bytes == pytest.approx(least, rel=0.02)


@pytest.mark.parametrize("name", ENTRIES)
def test_catalog_moves_what_its_cost_says(least_traffic, name):
    least_traffic(ENTRIES[name])


UNITS = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}


SHAPES = {"causal_128": 0, "causal_64": 1, "ragged_128": 3}
ONCE = {"sm_80": "ragged_128", "sm_100": "causal_128", "gfx942": "causal_64"}
"""Targets for which each run compiles one shape; for the H100 all of them, and `make test-all` all for each target."""


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        pytest.param(
            target, SHAPES[name], id=f"{name}-{target}", marks=[pytest.mark.slow] * (ONCE.get(target, name) != name)
        )
        for target in TARGETS
        for name in SHAPES
    ],
)
def test_clean_code(target, shape):
    entry = ENTRIES["flash_attention_with_gradients"]
    inputs = entry.inputs(entry.compiled[shape], torch.bfloat16, "meta", 0)
    codes = {code.name: code for code in inspect(lambda: entry.launch(*inputs), target)}
    assert len(codes) == 4
    for name, code in codes.items():
        assert code.spilled_bytes == 0 and code.fits, code.report()
        if name != "prepare_rows_kernel":
            assert code.tensor_cores == UNITS[target], code.report()
            assert code.widest_load == 128, code.report()


@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.slow)])
def test_clean_code_for_float32(head_dim):
    q, k, v = (torch.empty(1, 2, 1024, head_dim, device="meta", requires_grad=True) for _ in range(3))
    codes = inspect(lambda: flash_attention(q, k, v, causal=True).sum().backward(), "sm_90")
    assert all(code.spilled_bytes == 0 and code.fits for code in codes), [code.report() for code in codes]


def test_two_programs_of_narrow_heads_share_a_multiprocessor():
    entry = ENTRIES["flash_attention"]
    inputs = entry.inputs(entry.compiled[1], torch.bfloat16, "meta", 0)
    (code,) = inspect(lambda: entry.launch(*inputs), "sm_90")
    assert code.registers <= 128 and 2 * code.shared_bytes <= code.shared_limit


def test_torch_compile_keeps_it_in_one_graph(normal):
    """As an operator: no graph break forwards or backwards, and the same result."""
    q, k, v, gradient = case(normal, 1, 2, 1, 33, 33, 16, torch.float32)

    def block(q, k, v):
        output, lse = flash_attention(2 * q, k, v, causal=True, return_lse=True)
        return output + lse[..., None]

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for ours, expected in zip(
        with_gradients(compiled, (q, k, v, gradient)), with_gradients(block, (q, k, v, gradient)), strict=True
    ):
        torch.testing.assert_close(ours, expected)
    torch.library.opcheck(torch.ops.threeloops.flash_attention, (q, k, v.requires_grad_(), True, 0.25, None, None))


def test_empty_inputs(device):
    def zeros(*shape):
        return torch.zeros(shape, device=device, requires_grad=True)

    assert flash_attention(zeros(0, 2, 5, 16), zeros(0, 1, 5, 16), zeros(0, 1, 5, 16)).shape == (0, 2, 5, 16)
    assert flash_attention(zeros(1, 2, 0, 16), zeros(1, 1, 5, 16), zeros(1, 1, 5, 16)).shape == (1, 2, 0, 16)
    q, k, v = zeros(1, 2, 3, 16), zeros(1, 2, 0, 16), zeros(1, 2, 0, 16)
    output = flash_attention(q, k, v)
    output.sum().backward()
    assert not output.any() and not q.grad.any()


def test_errors_name_what_is_wrong(device):
    def ones(*shape, dtype=torch.float16):
        return torch.ones(shape, dtype=dtype, device=device)

    q = ones(1, 4, 8, 64)
    with pytest.raises(ValueError, match="head_dim = 80: expected one of 16, 32, 64, 128; pad the heads"):
        flash_attention(*[ones(1, 1, 8, 80)] * 3)
    with pytest.raises(ValueError, match="kv_heads = 3: expected a positive divisor of heads = 4"):
        flash_attention(q, ones(1, 3, 8, 64), ones(1, 3, 8, 64))
    with pytest.raises(ValueError, match=r"v has shape \(1, 4, 7, 64\)"):
        flash_attention(q, ones(1, 4, 8, 64), ones(1, 4, 7, 64))
    with pytest.raises(ValueError, match=r"k has shape \(4, 8, 64\): expected 4 dimensions"):
        flash_attention(q, ones(4, 8, 64), ones(4, 8, 64))
    with pytest.raises(ValueError, match="k is bfloat16 and q is float16"):
        flash_attention(q, ones(1, 4, 8, 64, dtype=torch.bfloat16), q)
    with pytest.raises(ValueError, match="softmax_scale = 0.0: expected a positive number"):
        flash_attention(q, q, q, softmax_scale=0.0)
    with pytest.raises(ValueError, match="block_m = 24: expected a power of two"):
        flash_attention(q, q, q, block_m=24)


def test_each_target_has_its_tiles():
    for name in TARGETS:
        with compiling_for(name):
            for head_dim in (16, 32, 64, 128):
                tiles = shipped(torch.bfloat16, head_dim)
                assert _ROWS % tiles.grad_q.rows == _ROWS % tiles.grad_k_v.rows == 0
