"""Block-sparse attention: as accurate as PyTorch's under a mask of positions, and blocks not named are not touched."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.attention.sizes import AttentionSizes, sizes_of
from threeloops.inner.kernels.launching import Tiles
from threeloops.inner.kernels.sparse.block_mask import BlockMask
from threeloops.inner.kernels.sparse.block_sparse_attention import (
    backward_cost,
    block_sparse_attention,
    cost,
    reference,
)
from threeloops.inner.kernels.sparse.block_sparse_traffic import _visible_pairs
from threeloops.inner.meter import meter
from tile_traffic import TiledTraffic, block_sparse

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def random_mask(queries, keys, block_size, *, heads=None, causal=False, density=0.5, seed=0):
    """A mask that names some blocks, whose query block 1 sees nothing."""
    shape = (*([heads] if heads else []), -(-queries // block_size), -(-keys // block_size))
    blocks = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density
    blocks[..., 0, 0] = True
    if blocks.shape[-2] > 1:
        blocks[..., 1, :] = False
    return BlockMask(blocks, block_size, causal)


def case(normal, batch, heads, kv_heads, queries, keys, head_dim, dtype):
    """q, k, v and a gradient of the output."""
    shapes = [(heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries)]
    return [normal(batch, *shape, head_dim, dtype=dtype, seed=index) for index, shape in enumerate(shapes)]


def with_gradients(function, tensors, mask, dtype=None):
    """Output and gradients of q, k, v."""
    *inputs, gradient = (each.to(dtype) if dtype else each for each in tensors)
    inputs = [each.clone().requires_grad_() for each in inputs]
    output = function(*inputs, mask)
    output.backward(gradient)
    return output.detach(), *(each.grad for each in inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "block_size", "per_head", "causal"),
    [
        (1, 2, 1, 257, 257, 64, 64, True, True),
        (2, 2, 2, 130, 200, 128, 32, False, False),
        (1, 4, 2, 129, 129, 64, 48, False, True),
        (2, 2, 1, 79, 79, 32, 16, True, False),
    ],
)
def test_as_accurate_as_pytorch(
    normal, as_accurate_as, dtype, batch, heads, kv_heads, queries, keys, head_dim, block_size, per_head, causal
):
    tensors = case(normal, batch, heads, kv_heads, queries, keys, head_dim, dtype)
    mask = random_mask(queries, keys, block_size, heads=heads if per_head else None, causal=causal)
    actual = with_gradients(block_sparse_attention, tensors, mask)
    exact = with_gradients(reference, tensors, mask, torch.float64)
    peer = with_gradients(reference, tensors, mask)
    for what, ours, truth, theirs in zip(("output", "dq", "dk", "dv"), actual, exact, peer, strict=True):
        as_accurate_as(ours, truth, theirs, what=what)


def test_a_query_that_sees_nothing_gives_zero(normal):
    tensors = case(normal, 1, 2, 2, 100, 100, 64, torch.float16)
    output, dq, *_ = with_gradients(block_sparse_attention, tensors, random_mask(100, 100, 32))
    for each in (output, dq):
        assert torch.equal(each[:, :, 32:64], torch.zeros_like(each[:, :, 32:64]))
        assert each[:, :, :32].abs().max() > 0


def test_a_key_that_nobody_sees_has_no_gradient(normal):
    tensors = case(normal, 1, 1, 1, 64, 96, 64, torch.float32)
    mask = BlockMask(torch.tensor([[True, False, True], [True, False, False]]), 32)
    _, _, dk, dv = with_gradients(block_sparse_attention, tensors, mask)
    for each in (dk, dv):
        assert torch.equal(each[:, :, 32:64], torch.zeros_like(each[:, :, 32:64]))
        assert each[:, :, 64:].abs().max() > 0


def test_what_is_not_named_is_not_loaded(normal):
    """NaN in a masked value would still reach the output: 0 · NaN is NaN."""
    q, k, v, _ = case(normal, 1, 1, 1, 192, 192, 64, torch.float16)
    mask = BlockMask(torch.tensor([[True, False, True]] * 3), 64)
    expected = block_sparse_attention(q, k, v, mask)
    k[:, :, 64:128] = v[:, :, 64:128] = float("nan")
    assert torch.equal(block_sparse_attention(q, k, v, mask), expected)


@given(
    st.integers(1, 90), st.integers(1, 90), st.sampled_from((16, 32)), st.sampled_from((8, 16)), st.booleans(),
    st.integers(0, 5),
)  # fmt: skip
def test_lists_name_the_tiles_with_a_visible_pair(queries, keys, block_size, tile, causal, seed):
    keys = queries if causal else keys
    mask = random_mask(queries, keys, block_size, heads=2, causal=causal, seed=seed)
    sizes = AttentionSizes(1, 2, 2, queries, keys, 64)
    visible = mask.by_position(queries, keys)[0]
    assert _visible_pairs(mask, sizes) == visible.sum()
    tiles = Tiles(tile, block_size, 4, 1)
    lists = mask.lists(sizes, tiles, torch.device("cpu"))
    transposed = mask.lists(sizes, tiles, torch.device("cpu"), transposed=True)
    for head in range(2):
        for m in range(-(-queries // tile)):
            for n in range(-(-keys // block_size)):
                seen = visible[head, m * tile : (m + 1) * tile, n * block_size : (n + 1) * block_size].any()
                assert (n in row_of(lists, head, m)) == (m in row_of(transposed, head, n)) == seen


def row_of(lists, head, row):
    start = head * lists.rows_per_head + row
    return lists.columns[lists.starts[start] : lists.starts[start + 1]].tolist()


@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "queries", "keys", "block_size", "per_head", "causal", "dtype"),
    [
        (1, 2, 1, 513, 513, 128, True, True, torch.float16),
        (2, 2, 2, 130, 200, 32, False, False, torch.bfloat16),
        (1, 2, 2, 100, 100, 64, False, True, torch.float32),
    ],
)
def test_traffic_is_that_of_named_blocks(
    interpreted, normal, batch, heads, kv_heads, queries, keys, block_size, per_head, causal, dtype
):
    *inputs, gradient = case(normal, batch, heads, kv_heads, queries, keys, 64, dtype)
    q, k, v = (each.requires_grad_() for each in inputs)
    mask = random_mask(queries, keys, block_size, heads=heads if per_head else None, causal=causal)
    sizes = sizes_of(q, k, v, 1.0)
    with meter() as traffic:
        block_sparse_attention(q, k, v, mask).backward(gradient)
    counted = [TiledTraffic(each.requested_loaded, each.requested_stored, each.dot_flops) for each in traffic.launches]
    assert counted == block_sparse(mask, sizes, dtype)
    assert not traffic.findings and traffic.total.atomics == 0
    least = cost(mask, sizes, dtype.itemsize) + backward_cost(mask, sizes, dtype.itemsize)
    assert traffic.total.unique_bytes == pytest.approx(least.bytes, rel=0.02)


def test_work_is_proportional_to_the_blocks_named():
    sizes = AttentionSizes(1, 1, 1, 4096, 4096, 64)
    one_in_eight = torch.eye(32, dtype=torch.bool)
    for shift in (5, 11, 19):
        one_in_eight |= torch.eye(32, dtype=torch.bool).roll(shift, 1)
    sparse, dense = (
        block_sparse(BlockMask(blocks, 128), sizes, torch.float16)[0].dot_flops
        for blocks in (one_in_eight, torch.ones(32, 32, dtype=torch.bool))
    )
    assert dense == 8 * sparse


def test_same_bits_every_time(normal):
    tensors = case(normal, 1, 4, 2, 130, 130, 64, torch.bfloat16)
    mask = random_mask(130, 130, 32, causal=True)
    first, second = (with_gradients(block_sparse_attention, tensors, mask) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 5), (1, 0, 5), (1, 5, 0)])
def test_nothing_to_attend(device, batch, queries, keys):
    q, k, v = (torch.ones(batch, 2, n, 64, device=device, requires_grad=True) for n in (queries, keys, keys))
    mask = BlockMask(torch.ones(-(-queries // 16), -(-keys // 16), dtype=torch.bool), 16)
    output = block_sparse_attention(q, k, v, mask)
    output.sum().backward()
    assert torch.equal(output, torch.zeros_like(q))
    assert all(torch.equal(each.grad, torch.zeros_like(each)) for each in (q, k, v))


def test_refusals(normal):
    q, k, v, _ = case(normal, 1, 2, 2, 64, 64, 64, torch.float16)
    blocks = torch.ones(4, 4, dtype=torch.bool)
    for message, call in (
        ("expected booleans", lambda: BlockMask(blocks.int(), 16)),
        ("block_size = 24", lambda: BlockMask(blocks, 24)),
        (r"expected \(2, 2\)", lambda: block_sparse_attention(q, k, v, BlockMask(blocks, 32))),
        (r"mask has \(3, 4, 4\)", lambda: block_sparse_attention(q, k, v, BlockMask(blocks.expand(3, 4, 4), 16))),
        ("under a causal mask", lambda: block_sparse_attention(q[:, :, :50], k, v, BlockMask(blocks, 16, causal=True))),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("block_size", [64, 128])
def test_code_for_the_h100(block_size):
    def call():
        q, k, v = (torch.empty(1, heads, 512, 128, dtype=torch.bfloat16, device="meta") for heads in (4, 2, 2))
        q.requires_grad_()
        mask = random_mask(512, 512, block_size, causal=True)
        block_sparse_attention(q, k, v, mask).backward(torch.empty_like(q))

    for code in inspect(call, "sm_90"):
        assert code.fits and not code.spills and code.tensor_cores == "wgmma", code.report()
        assert code.widest_load == code.widest_store == 128, code.report()
