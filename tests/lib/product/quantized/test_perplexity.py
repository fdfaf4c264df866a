"""Perplexity: against a loop over tokens that finds each one's context from the definition."""

import math

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.quantized import Perplexity, perplexity


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    model = GPT(GPTConfig.tiny(vocabulary_size=20, layers=1, max_sequence=16)).double().requires_grad_(False)
    for weight in model.parameters():
        weight *= 10
    return model


def by_hand(model, tokens, window, stride):
    """Of token `place` (from 1 on): the first window that ends at or behind it is the one that counts."""
    total, contexts = 0.0, []
    last = len(tokens) - 1
    for place in range(1, len(tokens)):
        end = min(window, last)
        while end < place:
            end = min(end + stride, last)
        start = max(0, end - window)
        logits = model(tokens[start:place][None])[0, -1]
        total -= float(logits.log_softmax(-1)[tokens[place]])
        contexts.append(place - start)
    return total / last, contexts


@pytest.mark.parametrize(
    ("length", "window", "stride"),
    [
        (50, 16, 16),
        (50, 16, 5),
        (33, 16, 1),
        (49, 8, 7),
        (17, 16, 16),
        (18, 16, 16),
        (2, 16, 4),
        (9, 16, 3),
        (30, 1, 1),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_token_counts_once_in_the_context_that_is_stated(model, length, window, stride, batch):
    tokens = torch.randint(20, (length,), generator=torch.Generator().manual_seed(length))
    found = perplexity(model, tokens, window=window, stride=stride, batch=batch)
    expected, contexts = by_hand(model, tokens, window, stride)
    assert found.tokens == length - 1
    assert found.nats == pytest.approx(expected, rel=1e-12)
    assert found.value == pytest.approx(math.exp(expected))
    assert all(context >= min(place, window - stride + 1) for place, context in enumerate(contexts, 1))


def test_by_default_windows_are_as_long_as_the_model_reads_and_follow_one_another(model):
    tokens = torch.randint(20, (60,), generator=torch.Generator().manual_seed(0))
    assert perplexity(model, tokens) == perplexity(model, tokens, window=16, stride=16)


def test_who_knows_nothing_is_as_unsure_as_there_are_tokens():
    model = GPT(GPTConfig.tiny(vocabulary_size=20, layers=1, max_sequence=16))
    torch.nn.init.zeros_(model.head.weight)
    found = perplexity(model, torch.arange(20))
    assert found.value == pytest.approx(20) and found.nats_per_byte(38) == pytest.approx(math.log(20) / 2)


def test_16_bit_models_are_summed_in_more(model):
    tokens = torch.randint(20, (300,), generator=torch.Generator().manual_seed(0))
    rounded = GPT(model.config)
    rounded.load_state_dict(model.state_dict())
    assert perplexity(rounded.bfloat16(), tokens).nats == pytest.approx(perplexity(model, tokens).nats, rel=0.02)
    assert isinstance(perplexity(rounded, tokens), Perplexity)


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        (torch.zeros(1, 5).long(), {}, r"tokens has shape \(1, 5\): expected \(tokens,\)"),
        (torch.zeros(1).long(), {}, r"tokens has shape \(1,\): .* at least 2"),
        (torch.arange(21), {}, "tokens go from 0 to 20: expected 0 to 19"),
        (torch.arange(-1, 9), {}, "tokens go from -1 to 8: expected 0 to 19"),
        (torch.arange(9), {"window": 17}, "window = 17: expected 1 to max_sequence = 16"),
        (torch.arange(9), {"window": 0}, "window = 0"),
        (torch.arange(9), {"window": 4, "stride": 5}, "stride = 5: expected 1 to 4, the window"),
        (torch.arange(9), {"stride": 0}, "stride = 0"),
    ],
)
def test_errors_name_what_is_wrong(model, tokens, options, words):
    with pytest.raises(ValueError, match=words):
        perplexity(model, tokens, **options)
