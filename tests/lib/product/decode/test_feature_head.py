"""Guesses from the model's own features: the model's tokens, whatever the extra layer guesses."""

import itertools
import math
from collections import Counter

import pytest
import torch
from decoding import greedy_alone, random_model
from threeloops.product.decode import FeatureHead, speculate
from threeloops.product.request import Sampling

MODEL = random_model()
TINY = random_model(seed=3, vocabulary_size=4, layers=1)


def random_head(model, seed=7):
    torch.manual_seed(seed)
    head = FeatureHead(model.config).to(model.head.weight.dtype)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3)
    return head.requires_grad_(False)


HEAD = random_head(MODEL)


@pytest.mark.parametrize("guesses", [1, 2, 5])
@pytest.mark.parametrize("prompt", [(5,), (1, 2, 3), tuple(range(20))], ids=len)
def test_greedy_tokens_are_those_without_guesses(prompt, guesses):
    result = speculate(MODEL, HEAD, prompt, Sampling(max_tokens=17), guesses)
    assert result.tokens == greedy_alone(MODEL, prompt, 17)
    assert 0 <= result.accepted <= result.judged and result.passes <= 16


def test_the_guesses_in_the_loop_are_those_of_a_pass_over_everything(monkeypatch):
    """At each step, with everything that the caches hold: the distributions equal those of `chances`, computed anew."""
    from threeloops.product.decode import feature_head

    seen = []

    def recorded(request, guess, logits):
        seen.append(([*request.prompt, *request.output], guess))
        return original(request, guess, logits)

    original = feature_head.judge
    monkeypatch.setattr(feature_head, "judge", recorded)
    speculate(MODEL, HEAD, (4, 9, 2), Sampling(max_tokens=12, temperature=1.0, seed=5), 3)
    assert len(seen) > 3
    for tokens, guess in seen:
        features, follow = MODEL.hidden(torch.tensor([tokens[:-1]])), tokens[1:]
        for place, token in enumerate(guess.tokens):  # its own features follow those of the model
            rotation = MODEL.rotation(0, len(follow))
            made = HEAD(features, MODEL.embedding(torch.tensor([follow])), rotation)
            chances = MODEL.head(made[0, -1]).softmax(-1)
            torch.testing.assert_close(guess.chances[place].double(), chances.double(), rtol=1e-5, atol=1e-6)
            features = torch.cat((features, made[:, -1:]), 1)
            follow = [*follow, token]


def test_chances_are_those_of_the_layer_one_position_at_a_time():
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    features, embedded = MODEL.hidden(tokens), MODEL.embedding(tokens)
    first = HEAD.chances(MODEL, tokens)
    second = HEAD.chances(MODEL, tokens, depth=2)
    assert first.shape == (1, 7, 61) and second.shape == (1, 6, 61)
    for end in range(1, 8):
        made = HEAD(features[:, :end], embedded[:, 1 : end + 1], MODEL.rotation(0, end))
        torch.testing.assert_close(MODEL.head(made[0, -1]).softmax(-1), first[0, end - 1])
        if end < 7:
            again = HEAD(made, embedded[:, 2 : end + 2], MODEL.rotation(1, end))
            torch.testing.assert_close(MODEL.head(again[0, -1]).softmax(-1), second[0, end - 1])


@pytest.mark.parametrize("depth", [1, 2])
def test_the_acceptance_is_the_overlap_of_the_two_distributions(depth):
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
    chances = HEAD.chances(MODEL, tokens, depth)
    overlaps = []
    for row, text in enumerate(tokens):
        for end in range(depth + 1, 9):
            own = MODEL(text[None, :end])[0, -1].softmax(-1)
            overlaps.append(
                sum(min(float(p), float(q)) for p, q in zip(own, chances[row, end - depth - 1], strict=True))
            )
    assert HEAD.acceptance(MODEL, tokens, depth) == pytest.approx(sum(overlaps) / len(overlaps), abs=1e-6)


def test_sampled_tokens_are_distributed_as_without_guesses():
    """Three tokens of a vocabulary of four: 64 texts, whose chances are products of the model's."""
    head, prompt, runs = random_head(TINY), (1, 2), 600
    expected = {}
    for text in itertools.product(range(4), repeat=3):
        chance = 1.0
        for place, token in enumerate(text):
            logits = TINY(torch.tensor([[*prompt, *text[:place]]]))[0, -1]
            chance *= float(logits.softmax(-1)[token])
        expected[text] = chance
    found = Counter(
        tuple(speculate(TINY, head, prompt, Sampling(max_tokens=3, temperature=1.0, seed=seed), 2).tokens)
        for seed in range(runs)
    )
    assert math.isclose(sum(expected.values()), 1)
    for text, chance in expected.items():
        deviation = math.sqrt(runs * chance * (1 - chance))
        assert abs(found[text] - runs * chance) <= 4 * deviation + 1, text


def test_a_layer_that_is_always_right_saves_passes(monkeypatch):
    from threeloops.product.decode import feature_head

    prompt = (1, 2, 3)
    right = greedy_alone(MODEL, prompt, 30)

    def guess(self, features, follow, start, request, count):
        done = len(request.output)
        return feature_head.Guess(right[done : done + count], torch.eye(61)[right[done : done + count]])

    monkeypatch.setattr(feature_head._Drafting, "guess", guess)
    result = speculate(MODEL, HEAD, prompt, Sampling(max_tokens=13), 3)
    assert result.tokens == right[:13]
    assert (result.passes, result.acceptance) == (3, 1.0)  # 1 + 3 · 4


@pytest.mark.parametrize(
    ("prompt", "guesses", "message"),
    [((), 1, "0 tokens of prompt"), ((1,), 0, "guesses = 0"), ((1,) * 120, 2, "130 positions")],
)
def test_what_cannot_be_computed_is_refused(prompt, guesses, message):
    with pytest.raises(ValueError, match=message):
        speculate(MODEL, HEAD, prompt, Sampling(max_tokens=9), guesses)
