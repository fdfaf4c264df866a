"""The heart of the engine's tests: whatever happens to requests, their tokens are those of greedy decoding alone."""

import itertools
from collections import Counter

import pytest
import torch
from serving_fuzz import differences, greedy, play, small_model
from threeloops.models.rope_scaling import YarnScaling
from threeloops.product.decode.runner import ModelRunner
from threeloops.product.request import Finish, Request, Sampling

PER_ENGINE = 20
EXECUTORS = {"model runner": (ModelRunner, 0)}
"""Factories of executors, and how many tokens a draft guesses for them."""

NORMAL, ALL = 250, pytest.param(10_000, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def play_all(model, executor, count):
    factory, guesses = EXECUTORS[executor]
    seen, wrong, seeds = Counter(), [], itertools.count()
    while seen["requests"] < count:
        seed = next(seeds)
        played = play(factory, model, seed, PER_ENGINE, guesses=guesses)
        seen += played.seen + Counter(requests=len(played.requests))
        wrong += differences(model, played.requests)
    return seen, wrong


@pytest.mark.parametrize("count", [NORMAL, ALL])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_in_float64_the_tokens_of_every_request_are_exactly_those_of_greedy_decoding_alone(executor, count):
    seen, wrong = play_all(small_model(torch.float64), executor, count)
    print(f"\n{executor}: {dict(seen)}")
    assert not wrong
    for what in ("preempted", "from the prefix cache", "cut prompts", "mixed steps", "copies", "forked", *Finish):
        assert seen[what] >= count / 100, f"too few: {what}"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_with_a_window_the_tokens_are_those_of_greedy_decoding_alone_too(executor):
    """Blocks outside of the window are shared and copied like all others, and not read."""
    model = small_model(torch.float64, sliding_window=7, qkv_bias=True, qk_norm=True, rope_scaling=YarnScaling(4.0, 20))
    seen, wrong = play_all(model, executor, 100)
    assert not wrong
    for what in ("from the prefix cache", "cut prompts", "copies", "forked"):
        assert seen[what], f"never: {what}"


@pytest.mark.parametrize("count", [100, ALL])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_in_float32_they_differ_only_where_the_two_best_logits_are_closer_than_1e_4(executor, count):
    seen, wrong = play_all(small_model(torch.float32), executor, count)
    print(f"\n{executor}, float32: {len(wrong)} of {seen['requests']} differ, at gaps of {[gap for *_, gap in wrong]}")
    assert all(gap < 1e-4 for *_, gap in wrong)


def test_every_token_of_a_prompt_matters_to_the_output():
    """Otherwise the tests above would not notice a key that is wrong."""
    model = small_model(torch.float64)
    prompt = tuple(range(20))
    changed = [(*prompt[:place], 30, *prompt[place + 1 :]) for place in range(20)]
    requests = [Request(str(n), each, Sampling(max_tokens=10)) for n, each in enumerate([prompt, *changed])]
    (first, *others), _ = greedy(model, requests)
    assert sum(output != first for output in others) >= 18
    assert len({token for output in others for token in output}) > 10
