"""Paged attention: each query over the keys that its table names, as exact as PyTorch's, with each key read once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.attention.paged_attention import _splits, cost, paged_attention, reference
from threeloops.inner.kernels.catalog import attention
from threeloops.inner.kernels.launching import TARGETS
from threeloops.inner.meter import meter

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ENTRIES = {entry.name: entry for entry in attention.entries()}


def case(lengths, heads, kv_heads, head_dim, block_size, dtype=torch.float32, device="cpu", seed=0, spare=2):
    """q, keys, values, tables and lengths. Blocks lie in random order; what no sequence holds is NaN, and the unused
    end of a table names a block that nobody has."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // block_size) for length in lengths]
    blocks = sum(counts) + spare
    order = torch.randperm(blocks, generator=generator).tolist()
    tables = torch.full((len(lengths), max(counts) + 1), order[-1])
    pool = torch.full((blocks * block_size, 2, kv_heads, head_dim), torch.nan)
    for sequence, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        tables[sequence, :count] = torch.tensor([order.pop(0) for _ in range(count)])
        for position in range(length):
            slot = tables[sequence, position // block_size] * block_size + position % block_size
            pool[slot] = torch.randn(2, kv_heads, head_dim, generator=generator)
    q = torch.randn(len(lengths), heads, head_dim, generator=generator)
    keys, values = pool.to(device, dtype).unbind(1)
    return q.to(device, dtype), keys, values, tables.to(device), torch.tensor(lengths, device=device)


def naive(q, keys, values, tables, lengths, block_size):
    """Attention in float64, key by key, with nothing of the library."""
    output = torch.empty(q.shape, dtype=torch.float64)
    group = q.shape[1] // keys.shape[1]
    for sequence, length in enumerate(lengths.tolist()):
        slots = [int(tables[sequence, p // block_size]) * block_size + p % block_size for p in range(length)]
        for head in range(q.shape[1]):
            k, v = (each[slots, head // group].double().cpu() for each in (keys, values))
            scores = k @ q[sequence, head].double().cpu() / q.shape[-1] ** 0.5
            output[sequence, head] = scores.softmax(0) @ v
    return output


def torch_attention(q, keys, values, tables, lengths, block_size):
    """PyTorch's own attention on each sequence's keys, gathered for it."""
    results = []
    for sequence, length in enumerate(lengths.tolist()):
        slots = [int(tables[sequence, p // block_size]) * block_size + p % block_size for p in range(length)]
        k, v = (each[slots].transpose(0, 1)[None] for each in (keys, values))
        attended = torch.nn.functional.scaled_dot_product_attention(q[sequence, None, :, None], k, v, enable_gqa=True)
        results.append(attended[0, :, 0])
    return torch.stack(results)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 8, 16, 128])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(4, 1, 16), (4, 2, 64), (4, 4, 32), (1, 1, 128)], ids=str
)  # fmt: skip
def test_as_accurate_as_pytorch(device, as_accurate_as, dtype, block_size, heads, kv_heads, head_dim):
    lengths = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 70})
    inputs = case(lengths, heads, kv_heads, head_dim, block_size, dtype, device)
    actual = paged_attention(*inputs, block_size)
    assert actual.isfinite().all(), "a slot that belongs to nobody was read"
    as_accurate_as(actual, naive(*inputs, block_size), torch_attention(*inputs, block_size))


@settings(max_examples=12)
@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=3),
    st.sampled_from([1, 3, 8, 16]),
    st.sampled_from([(6, 2), (3, 3), (20, 1), (34, 2)]),
    st.integers(1, 7),
)
def test_splitting_the_keys_changes_nothing_but_rounding(lengths, block_size, heads, splits):
    inputs = case(lengths, *heads, 16, block_size)
    expected = naive(*inputs, block_size)
    for parts in (1, splits):
        found = paged_attention(*inputs, block_size, splits=parts).double()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_long_sequences_are_split_and_short_ones_are_not(interpreted):
    assert _splits(programs=1, keys=64) == 1 and _splits(programs=10_000, keys=100_000) == 1
    assert _splits(programs=8, keys=8192) == 32 and _splits(programs=1, keys=10**6) == 64
    inputs = case([700, 3], 2, 1, 16, 16)
    with meter() as traffic:
        found = paged_attention(*inputs, 16)
    assert [launch.name for launch in traffic.launches] == ["paged_attention_kernel", "combine_splits_kernel"]
    torch.testing.assert_close(found.double(), naive(*inputs, 16), rtol=1e-4, atol=1e-5)


def test_large_scores_and_another_scale(device):
    q, *rest = case([5, 40], 2, 1, 16, 8, device=device)
    found = paged_attention(q, *rest, 8, softmax_scale=30.0)
    torch.testing.assert_close(found.double().cpu(), naive(q * 120, *rest, 8), rtol=1e-3, atol=1e-3)


def test_the_reference_is_the_naive_one(device):
    q, keys, values, tables, lengths = case([1, 17, 33], 4, 2, 16, 16, torch.float64, device)
    found = reference(q, keys.nan_to_num(), values.nan_to_num(), tables, lengths, 16)
    torch.testing.assert_close(found.cpu(), naive(q, keys, values, tables, lengths, 16))


def test_strides_and_index_types(device):
    q, keys, values, tables, lengths = case([20, 9], 4, 2, 32, 8, device=device)
    expected = paged_attention(q, keys.contiguous(), values.contiguous(), tables, lengths, 8)
    assert torch.equal(paged_attention(q, keys, values, tables.int(), lengths.int(), 8), expected)
    by_columns = q.mT.contiguous().mT, keys.mT.contiguous().mT, values
    assert torch.equal(paged_attention(*by_columns, tables.mT.contiguous().mT, lengths, 8), expected)
    of_a_projection = torch.stack([q, q], 1)[:, 0]
    found = paged_attention(of_a_projection, keys, values, tables, lengths, 8)
    assert torch.equal(found, expected) and found.is_contiguous()
    assert paged_attention(q[:0], keys, values, tables[:0], lengths[:0], 8).shape == (0, 4, 32)


def test_what_is_refused(device):
    q, keys, values, tables, lengths = case([20, 9], 4, 2, 32, 8, device=device)
    for message, arguments in {
        "q has shape": (q[0], keys, values, tables, lengths, 8),
        "values has shape": (q, keys, values[:8], tables, lengths, 8),
        "head_dim = 24": (q[..., :24], keys[..., :24], values[..., :24], tables, lengths, 8),
        "keys has shape": (q, keys[..., :16], values, tables, lengths, 8),
        "kv_heads = 2": (q[:, :3], keys, values, tables, lengths, 8),
        "tables has shape": (q, keys, values, tables[:1], lengths, 8),
        "lengths has shape": (q, keys, values, tables, lengths[:1], 8),
        "lengths is float32": (q, keys, values, tables, lengths.float(), 8),
        "block_size = 9": (q, keys, values, tables, lengths, 9),
        "keys is float16": (q, keys.half(), values, tables, lengths, 8),
    }.items():
        with pytest.raises(ValueError, match=message):
            paged_attention(*arguments)
    with pytest.raises(ValueError, match="splits = 0"):
        paged_attention(q, keys, values, tables, lengths, 8, splits=0)
    with pytest.raises(ValueError, match="softmax_scale = -1"):
        paged_attention(q, keys, values, tables, lengths, 8, softmax_scale=-1.0)


def test_catalog_moves_what_its_cost_says(least_traffic):
    least_traffic(ENTRIES["paged_attention"])


def test_the_cost_of_one_layer_of_a_known_model():
    """Llama 3 8B: 32 sequences of 1,000 tokens hold 4,096 bytes of keys and values per token and layer."""
    work = cost(32_000, 32, 32, 8, 128, block_size=16)
    assert work.bytes == 32_000 * 4096 + 2 * 32 * 32 * 128 * 2 + 32 * (63 + 1) * 4
    assert work.flops == (4 * 128 + 6) * 32 * 32_000 and 1 < work.intensity < 8


@pytest.mark.parametrize(
    ("target", "shape", "dtype"),
    [*((target, 1, torch.bfloat16) for target in TARGETS), ("sm_90", 2, torch.float32), ("sm_100", 2, torch.float32)],
)
def test_clean_code(target, shape, dtype):
    """A sequence of 8,192 keys alone, in several parts; and 64 heads with one key head, in float32."""
    entry = ENTRIES["paged_attention"]
    inputs = entry.inputs(entry.compiled[shape], dtype, "meta", 0)
    codes = {code.name: code for code in inspect(lambda: entry.launch(*inputs), target)}
    assert codes.keys() == {"paged_attention_kernel", "combine_splits_kernel"}
    for code in codes.values():
        assert code.spilled_bytes == 0 and code.fits, code.report()
    assert codes["paged_attention_kernel"].widest_load == 128
