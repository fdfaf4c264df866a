"""Every variant of architecture gives transformers' logits: in a plain pass, with both caches and in the engine."""

import dataclasses

import pytest
import torch
from model_variants import VARIANTS, variant_config, variant_model, write_variant
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import load_llama_folder, save_llama_folder
from threeloops.models.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling
from threeloops.product.batching import Policy
from threeloops.product.batching.engine import Engine
from threeloops.product.decode import BlockManager, ContiguousCache, ModelRunner, PagedCache, Rows, generate
from threeloops.product.request import Request, Sampling

CLOSE = {"rtol": 0, "atol": 1e-5}
LENGTHS = [40, 33, 7, 18]
FEATURES = {"qkv_bias": False, "qk_norm": False, "sliding_window": None, "rope_scaling": None}
"""What each feature is in a model without it. The other variants differ in the sizes of their weights."""


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """Transformers' model, ours read from its folder, sequences, and transformers' logits of each."""
    folder = tmp_path_factory.mktemp("variant")
    theirs, ours = write_variant(request.param, folder), load_llama_folder(folder)
    assert ours.config == variant_config(request.param), "every setting of config.json is understood"
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(61, (length,), generator=generator) for length in LENGTHS]
    with torch.no_grad():
        logits = [theirs(sequence[None]).logits[0] for sequence in sequences]
    return theirs, ours, sequences, logits


@torch.inference_mode()
def test_a_plain_pass_gives_their_logits(pair):
    _, model, sequences, logits = pair
    for sequence, expected in zip(sequences, logits, strict=True):
        torch.testing.assert_close(model(sequence[None])[0], expected, **CLOSE)


@torch.inference_mode()
def test_the_contiguous_cache_gives_their_logits(pair):
    """A batch padded on the right, then one token after the other, then a chunk."""
    _, model, sequences, logits = pair
    longest = max(LENGTHS)
    cache = ContiguousCache(model.config, len(LENGTHS), longest)
    padded = torch.stack([torch.cat([each, each.new_zeros(longest - len(each))]) for each in sequences])
    found, done = [], 0
    for count in (9, 1, 1, 1, 1, 1, longest - 14):
        start = torch.full((len(LENGTHS),), done)
        found.append(model.head(cache.hidden(model, padded[:, done : done + count], start)))
        done += count
    for place, expected in enumerate(logits):
        torch.testing.assert_close(torch.cat(found, 1)[place, : len(expected)], expected, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_the_paged_cache_gives_their_logits(pair, block_size):
    """Chunks of prompts and single tokens of four sequences in the same steps, blocks in no order."""
    _, model, sequences, logits = pair
    counts = [-(-length // block_size) for length in LENGTHS]
    free = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(2)).tolist()
    tables = [[free.pop() for _ in range(count)] for count in counts]
    cache = PagedCache(model.config, sum(counts), block_size, dtype=torch.float32, device="cpu")
    found, done = [[] for _ in LENGTHS], [0] * len(LENGTHS)
    for step in ([11, 1, 1, 11], [11, 1, 1, 1], [1, 20, 1, 1], [1, 1, 1, 1], [40, 40, 40, 40]):
        members = [place for place in range(len(LENGTHS)) if done[place] < LENGTHS[place]]
        chunks = [Rows(sequences[at][done[at] : done[at] + step[at]].tolist(), done[at], tables[at]) for at in members]
        rows = model.head(cache.hidden(model, chunks)).split([len(chunk.tokens) for chunk in chunks])
        for place, chunk, part in zip(members, chunks, rows, strict=True):
            found[place].append(part)
            done[place] += len(chunk.tokens)
    for parts, expected in zip(found, logits, strict=True):
        torch.testing.assert_close(torch.cat(parts), expected, **CLOSE)


def test_the_engine_and_generate_give_their_greedy_tokens(pair):
    """Prompts in chunks, blocks shared with an equal prefix, and so few blocks that requests are preempted."""
    theirs, model, sequences, _ = pair
    prompts = [each.tolist() for each in [*sequences[1:], sequences[1][:20]]]
    expected = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        made = theirs.generate(tokens, attention_mask=tokens * 0 + 1, max_new_tokens=12, do_sample=False)
        expected.append(made[0, len(prompt) :].tolist())
    sampling = Sampling(max_tokens=12)
    assert generate(model, prompts, sampling) == expected
    engine = Engine(ModelRunner(model, 26, 4), BlockManager(26, 4), Policy(token_budget=16))
    requests = [Request(str(place), tuple(prompt), sampling) for place, prompt in enumerate(prompts)]
    engine.run(requests)
    assert [request.output for request in requests] == expected
    assert any(request.preemptions for request in requests), "the test must let requests wait for blocks"


@pytest.mark.parametrize("name", VARIANTS)
def test_transformers_loads_what_we_save(name, tmp_path):
    from transformers import AutoModelForCausalLM

    model, tokens = variant_model(name), torch.arange(40)[None]
    save_llama_folder(model, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    again = load_llama_folder(tmp_path)
    assert again.config == model.config
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), **CLOSE)
        assert torch.equal(again(tokens), model(tokens))


@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if variant_config(name, **FEATURES) != variant_config(name)]
)
def test_a_feature_that_is_left_out_changes_the_logits(name):
    """So the tests above would notice a feature that is not computed."""
    model, tokens = variant_model(name), torch.arange(40)[None]
    plain = GPT(dataclasses.replace(model.config, **FEATURES))
    plain.load_state_dict({name: model.state_dict()[name] for name in plain.state_dict()})
    with torch.no_grad():
        assert (plain(tokens) - model(tokens)).abs().max() > 0.01


@pytest.mark.parametrize("name", ["llama3 positions", "window", "norms and window", "norms, wide heads, tied"])
def test_fused_kernels_compute_the_same(name):
    """Forward and backward."""
    eager, tokens = variant_model(name), torch.arange(20)[None]
    fused = variant_model(name, kernels="fused")
    for model in (eager, fused):
        model(tokens, tokens).backward()
    with torch.no_grad():
        torch.testing.assert_close(fused(tokens), eager(tokens), rtol=1e-4, atol=1e-4)
    gradients = {name: weight.grad for name, weight in fused.named_parameters()}
    for name, weight in eager.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_counted(name):
    model = variant_model(name)
    assert sum(weight.numel() for weight in model.parameters()) == model.config.parameters_count()


def test_a_window_needs_fewer_flops_only_beyond_its_length():
    plain, window = GPTConfig.tiny(), GPTConfig.tiny(sliding_window=8)
    assert window.flops_per_token(8) == plain.flops_per_token(8) < window.flops_per_token(9) < plain.flops_per_token(9)
    seen = [min(place + 1, 8) for place in range(20)]
    scores = 4 * window.layers * window.heads * window.head_dim
    assert window.flops_per_token(20) - 2 * window.matmul_parameters == pytest.approx(scores * sum(seen) / 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 7}, "head_dim = 7: expected an even number"),
        ({"head_dim": -2}, "head_dim = -2: expected an even number"),
        ({"head_dim": None}, "head_dim = None: expected an even number"),
        ({"sliding_window": 0}, "sliding_window = 0: expected a whole number, at least 1"),
        ({"sliding_window": True}, "sliding_window = True: expected a whole number"),
        ({"width": 36}, "width = 36: expected a multiple of 2·heads = 8"),
    ],
)
def test_what_cannot_be_computed_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig.tiny(**changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearScaling(0), "factor = 0 in LinearScaling: expected a positive number"),
        (lambda: LinearScaling(float("nan")), "factor = nan"),
        (lambda: Llama3Scaling(8.0, None), "original_max_sequence = None in Llama3Scaling"),
        (lambda: Llama3Scaling(8.0, 64, 4.0, 4.0), "high_frequency_factor = 4.0: expected more than"),
        (lambda: YarnScaling(4.0, 64, attention_factor=-1.0), "attention_factor = -1.0 in YarnScaling"),
        (lambda: YarnScaling(4.0, 64, beta_fast=1, beta_slow=2), "beta_fast = 1: expected at least beta_slow = 2"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
