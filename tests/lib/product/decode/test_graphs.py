"""Decode steps from CUDA graphs: what is padded disturbs nobody, and a replay gives what a run gives."""

import pytest
import torch
from decoding import hidden_alone, random_model
from threeloops.inner.kernels import interpreter
from threeloops.product.decode import DecodeGraphs, ModelRunner, PagedCache, Rows
from threeloops.product.decode.graphs import _fill, _static

SEQUENCES = [[9, 8, 7, 6, 5], [1, 2], [30, 31, 32, 33, 34, 35, 36]]
TABLES = [[0, 5], [3], [1, 2]]


def prefilled(model, **options):
    """A cache with all tokens but the last of each sequence, and the chunks of those."""
    weight = model.head.weight
    cache = PagedCache(model.config, 8, 4, dtype=weight.dtype, device=weight.device, **options)
    cache.hidden(model, [Rows(tokens[:-1], 0, table) for tokens, table in zip(SEQUENCES, TABLES, strict=True)])
    last = [Rows(tokens[-1:], len(tokens) - 1, table) for tokens, table in zip(SEQUENCES, TABLES, strict=True)]
    return cache, last


@pytest.mark.skipif(not interpreter.interpreted(), reason="here kernels are compiled for a GPU")
@pytest.mark.parametrize("bucket", [3, 4, 8])
@torch.inference_mode()
def test_a_padded_step_gives_what_the_step_gives(bucket):
    """What a graph would replay, run one by one. The tensors are those of a step before, and of other sizes."""
    model = random_model(dtype=torch.float32, heads=4, kv_heads=2, width=64)
    cache, last = prefilled(model, kernel=True)
    static = _static(bucket, 32, cache.device)
    addresses = [each.data_ptr() for each in (static.tokens, static.slots, static.groups[0].tables)]
    _fill(static, cache.prepare(last[:1]))
    before = cache._pool.clone()
    _fill(static, cache.prepare(last))
    found = cache.run(model, static)[: len(last)]
    assert addresses == [each.data_ptr() for each in (static.tokens, static.slots, static.groups[0].tables)]
    for rows, tokens in zip(found, SEQUENCES, strict=True):
        exact = hidden_alone(random_model(heads=4, kv_heads=2, width=64), tokens)[-1]
        torch.testing.assert_close(rows.double(), exact, rtol=1e-3, atol=1e-3)
    changed = (cache._pool != before).flatten(2).any(2).any(0).nonzero()[:, 0].tolist()
    assert changed == sorted(cache.prepare(last).slots.tolist()), "padding wrote where nobody's token belongs"


def test_without_a_gpu_graphs_are_refused():
    model = random_model()
    cache = PagedCache(model.config, 8, 4, dtype=torch.float64, device="cpu")
    with pytest.raises(ValueError, match="a cache on cpu: expected one on a CUDA device"):
        DecodeGraphs(model, cache)
    with pytest.raises(ValueError, match="graphs=False elsewhere"):
        ModelRunner(model, 8, 4, graphs=True)


@pytest.mark.gpu
@torch.inference_mode()
def test_a_replay_gives_what_a_run_gives():
    model = random_model(dtype=torch.float32, heads=4, kv_heads=2, width=64).to("cuda")
    cache, last = prefilled(model)
    graphs = DecodeGraphs(model, cache, largest=2)
    for chunks in (last[:1], last[:2], last[1:2], last[:2], last):
        expected = cache.hidden(model, chunks)
        torch.testing.assert_close(graphs.hidden(chunks), expected, rtol=1e-4, atol=1e-4)
    assert sorted(graphs._captured) == [1, 2], "three sequences are more than the largest graph takes"
