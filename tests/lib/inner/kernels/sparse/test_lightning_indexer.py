"""The indexer and its choice, against float64 and transformers, and attention to what was chosen."""

import math

import pytest
import torch
from threeloops.inner.kernels.attention.paged_attention import paged_attention
from threeloops.inner.kernels.catalog import sparse
from threeloops.inner.kernels.sparse.lightning_indexer import choose_blocks, cost, index_scores
from threeloops.inner.meter import meter


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def oracle_scores(q, keys, weights):
    """Σ weight · max(0, q · key), a head and a token at a time, in float64."""
    scores = torch.zeros(keys.shape[:2], dtype=torch.float64)
    for sequence in range(len(q)):
        for token in range(keys.shape[1]):
            for head in range(q.shape[1]):
                product = float(q[sequence, head].double() @ keys[sequence, token].double())
                scores[sequence, token] += max(0.0, product) * float(weights[sequence, head])
    return scores


@pytest.mark.parametrize(("sequences", "heads", "tokens", "dim"), [(1, 1, 1, 16), (2, 3, 129, 32), (3, 17, 40, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_equal_float64(sequences, heads, tokens, dim, dtype):
    q, keys = drawn(sequences, heads, dim, dtype=dtype), drawn(sequences, tokens, dim, seed=1, dtype=dtype)
    weights = drawn(sequences, heads, seed=2, dtype=dtype)
    actual = index_scores(q, keys, weights)
    torch.testing.assert_close(actual.double(), oracle_scores(q, keys, weights), rtol=1e-5, atol=1e-4)


def test_the_catalog_lists_it_with_a_reference_and_a_cost():
    entry = next(entry for entry in sparse.entries() if entry.name == "index_scores")
    shape, dtype = entry.metered[-1], torch.bfloat16
    inputs = entry.inputs(shape, dtype, "cpu", 0)
    expected = entry.reference(*(tensor.double() for tensor in inputs))
    assert expected.dtype == torch.float64
    torch.testing.assert_close(expected, oracle_scores(*inputs), rtol=1e-12, atol=1e-12)
    with meter() as traffic:
        actual = entry.launch(*inputs)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-4)
    assert traffic.total.unique_bytes == entry.cost(shape, dtype).bytes


def test_it_chooses_what_the_indexer_of_transformers_chooses():
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

    config = transformers.DeepseekV32Config(
        hidden_size=24, q_lora_rank=20, index_n_heads=4, index_head_dim=16, qk_rope_head_dim=8, index_topk=7
    )
    torch.manual_seed(0)
    indexer = DeepseekV32Indexer(config, 0).eval()
    x, q_rank = drawn(2, 31, 24, seed=1), drawn(2, 31, 20, seed=2)
    still = torch.ones(2, 31, 8), torch.zeros(2, 31, 8)  # no rotation
    with torch.no_grad():
        theirs = indexer(x, q_rank, still, torch.zeros(1, 31, 31), None)[:, -1]  # of the last query
        q = indexer.wq_b(q_rank[:, -1]).view(2, 4, 16)
        keys, weights = indexer.k_norm(indexer.wk(x)), indexer.weights_proj(x[:, -1])
    scores = index_scores(q, keys, weights)
    assert [set(row) for row in scores.topk(7).indices.tolist()] == [set(row) for row in theirs.tolist()]


def test_the_choice_takes_the_last_block_and_the_best():
    scores = torch.tensor([[1.0, 2, 9, 0, 3, 3, 0, 0, 0, 0, 0, 0], [5.0, 0, 0, 4, 3, 2, 6, 1, 1, 1, -1, 9]])
    choice = choose_blocks(scores, torch.tensor([10, 11]), 2, 3)
    assert choice.blocks.tolist() == [[1, 2, 4], [0, 3, 5]]
    assert choice.lengths.tolist() == [6, 5]


def test_scores_beyond_the_length_are_not_looked_at():
    scores = torch.tensor([[1.0, 2.0, 3.0, math.inf], [0.0, 0.0, math.nan, math.nan]])
    choice = choose_blocks(scores, torch.tensor([3, 2]), 1, 2)
    assert choice.blocks.tolist() == [[1, 2], [0, 1]]


def test_a_short_sequence_gets_all_its_blocks():
    choice = choose_blocks(drawn(2, 16), torch.tensor([3, 15]), 4, 3)
    assert choice.blocks[0, 0] == 0 and choice.lengths.tolist() == [3, 11]
    assert choose_blocks(drawn(1, 16), torch.tensor([16]), 4, 99).blocks.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("block_size", "count"), [(1, 9), (8, 3), (16, 99)])
def test_attention_to_the_choice_is_dense_attention_with_the_rest_hidden(block_size, count):
    sequences, capacity, heads, kv_heads, dim = 3, 64, 4, 2, 16
    lengths = torch.tensor([64, 5, 43])
    q = drawn(sequences, heads, dim)
    keys, values = (drawn(sequences, capacity, kv_heads, dim, seed=seed) for seed in (1, 2))
    choice = choose_blocks(drawn(sequences, capacity, seed=3), lengths, block_size, count)
    tables = choice.blocks + torch.arange(sequences)[:, None] * (capacity // block_size)
    actual = paged_attention(q, keys.flatten(0, 1), values.flatten(0, 1), tables.int(), choice.lengths, block_size)
    for row in range(sequences):
        visible = torch.zeros(capacity, dtype=torch.bool)
        for block in choice.blocks[row].tolist():
            visible[block * block_size : (block + 1) * block_size] = True
        visible[lengths[row] :] = False
        assert int(visible.sum()) == int(choice.lengths[row])
        for head in range(heads):
            own = head // (heads // kv_heads)
            scores = keys[row, :, own].double() @ q[row, head].double() / dim**0.5
            weights = scores.masked_fill(~visible, -math.inf).softmax(0)
            expected = weights @ values[row, :, own].double()
            torch.testing.assert_close(actual[row, head].double(), expected, rtol=0, atol=1e-6)


def test_the_meter_counts_the_closed_form():
    q, keys, weights = drawn(2, 16, 64), drawn(2, 300, 64, seed=1), drawn(2, 16, seed=2)
    with meter() as traffic:
        index_scores(q, keys, weights)
    work = cost(300, 2, 16, 64, 4)
    assert traffic.total.unique_bytes == work.bytes
    assert traffic.total.dot_flops >= 2 * 2 * 300 * 16 * 64  # and those of the padded tile


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((drawn(1, 4, 24), drawn(1, 8, 24), drawn(1, 4)), "24"),
        ((drawn(1, 4, 16), drawn(1, 8, 32), drawn(1, 4)), "keys"),
        ((drawn(1, 4, 16), drawn(1, 8, 16), drawn(1, 5)), "weights"),
        ((drawn(1, 129, 16), drawn(1, 8, 16), drawn(1, 129)), "heads = 129"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        index_scores(*arguments)


@pytest.mark.parametrize(("block_size", "count", "message"), [(3, 1, "block_size = 3"), (4, 0, "count = 0")])
def test_a_choice_that_does_not_fit_is_refused(block_size, count, message):
    with pytest.raises(ValueError, match=message):
        choose_blocks(drawn(1, 16), torch.tensor([4]), block_size, count)
