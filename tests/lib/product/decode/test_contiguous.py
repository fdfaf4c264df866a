"""The plain cache and its decode loop: the tokens of each prompt alone, for less work and more memory."""

import pytest
import torch
from decoding import greedy_alone, hidden_alone, random_model
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching.engine import Engine
from threeloops.product.decode import (
    BlockManager,
    ContiguousCache,
    ModelRunner,
    bytes_per_token,
    contiguous_waste,
    generate,
    paged_waste,
)
from threeloops.product.request import Request, Sampling

PROMPTS = [[5], [3, 1, 4, 1, 5, 9, 2, 6], [27, 18, 28], list(range(17))]


@pytest.fixture(scope="module", params=[(4, 1), (4, 2), (4, 4)], ids=lambda heads: f"{heads[0]}/{heads[1]}")
def model(request):
    heads, kv_heads = request.param
    return random_model(heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_each_prompt_gets_the_tokens_that_it_gets_alone(model, cache):
    expected = [greedy_alone(model, prompt, 12) for prompt in PROMPTS]
    assert len({tuple(each) for each in expected}) == len(PROMPTS)
    assert generate(model, PROMPTS, Sampling(max_tokens=12), cache=cache) == expected


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_a_stop_token_ends_its_own_sequence_only(model, cache):
    free = [greedy_alone(model, prompt, 9) for prompt in PROMPTS]
    stop = frozenset({free[1][3]})
    expected = [greedy_alone(model, prompt, 9, stop) for prompt in PROMPTS]
    assert any(len(each) < 9 for each in expected) and expected[1][-1] in stop
    assert generate(model, PROMPTS, Sampling(max_tokens=9, stop=stop), cache=cache) == expected


def test_cached_uncached_and_engine_draw_the_same_tokens(model):
    sampling = Sampling(max_tokens=10, temperature=1.2, top_p=0.95, seed=11)
    cached = generate(model, PROMPTS, sampling)
    assert cached == generate(model, PROMPTS, sampling, cache=False)
    engine = Engine(ModelRunner(model, 40, 4), BlockManager(40, 4))
    requests = [Request(str(place), tuple(prompt), sampling) for place, prompt in enumerate(PROMPTS)]
    engine.run(requests)
    assert [request.output for request in requests] == cached
    assert generate(model, PROMPTS, Sampling(max_tokens=10, temperature=1.2, top_p=0.95, seed=12)) != cached


def test_sequences_of_one_batch_may_stand_at_different_positions(model):
    """Prefill padded on the right, then chunks of two tokens: every row is what it is in its own sequence."""
    sequences = [[7, 3, 9, 1, 2, 8, 4], [1, 2, 3, 4, 5]]
    cache = ContiguousCache(model.config, 2, 7, dtype=torch.float64)
    first = cache.hidden(model, torch.tensor([[7, 3, 9, 1, 2], [1, 2, 3, 0, 0]]), torch.tensor([0, 0]))
    second = cache.hidden(model, torch.tensor([[8, 4], [4, 5]]), torch.tensor([5, 3]))
    for place, (tokens, known) in enumerate(zip(sequences, (5, 3), strict=True)):
        found = torch.cat([first[place, :known], second[place]])
        torch.testing.assert_close(found, hidden_alone(model, tokens), rtol=1e-10, atol=1e-10)


def test_a_cache_computes_each_token_once(model, monkeypatch):
    computed = []
    hidden = type(model).hidden
    monkeypatch.setattr(
        type(model),
        "hidden",
        lambda self, tokens, **more: computed.append(tokens.numel()) or hidden(self, tokens, **more),
    )
    generate(model, [[1, 2, 3]], Sampling(max_tokens=5))
    assert computed == [3, 1, 1, 1, 1]
    computed.clear()
    generate(model, [[1, 2, 3]], Sampling(max_tokens=5), cache=False)
    assert computed == [3, 4, 5, 6, 7]


def test_a_full_cache_says_so(model):
    cache = ContiguousCache(model.config, 1, 4, dtype=torch.float64)
    cache.hidden(model, torch.tensor([[1, 2, 3]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="5 tokens in a cache of capacity = 4"):
        cache.hidden(model, torch.tensor([[1, 2]]), torch.tensor([3]))


@pytest.mark.parametrize(
    ("prompts", "tokens", "message"),
    [([], 1, "prompts"), ([[1], []], 1, "a token in each"), ([[1] * 120], 10, "129 positions.*max_sequence = 128")],
)
def test_what_is_refused(model, prompts, tokens, message):
    with pytest.raises(ValueError, match=message):
        generate(model, prompts, Sampling(max_tokens=tokens))


@pytest.mark.parametrize(("batch", "capacity", "message"), [(0, 1, "batch = 0"), (1, 0, "capacity = 0")])
def test_sizes_that_are_refused(model, batch, capacity, message):
    with pytest.raises(ValueError, match=message):
        ContiguousCache(model.config, batch, capacity)


def test_the_last_position_of_the_model_can_be_used(model):
    assert len(generate(model, [[1] * 120], Sampling(max_tokens=9))[0]) == 9


def test_bytes_of_the_cache():
    config = GPTConfig.tiny(layers=3, heads=4, kv_heads=2, width=64)
    assert bytes_per_token(config, 2) == 2 * 3 * 2 * 16 * 2
    for dtype in (torch.float32, torch.bfloat16):
        cache = ContiguousCache(config, 5, 7, dtype=dtype)
        assert cache.nbytes == 5 * 7 * bytes_per_token(config, dtype.itemsize)
    llama_8b = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192)
    assert bytes_per_token(llama_8b) == 131_072, "128 KiB per token, as published for Llama 3 8B in 16 bits"


def test_waste_of_a_reservation_and_of_blocks():
    assert contiguous_waste([10, 30], 40) == 0.5 and paged_waste([10, 30], 16) == pytest.approx(1 - 40 / 48)
    assert paged_waste([16, 32], 16) == 0 and paged_waste([3, 9], 1) == 0 and contiguous_waste([7], 7) == 0
    assert paged_waste([1], 16) == 15 / 16
