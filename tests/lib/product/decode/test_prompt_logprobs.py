"""How likely the tokens of a prompt were: the same in one step or in many, and whatever else the engine does."""

import pytest
import torch
from decoding import random_model
from threeloops.product.batching import Engine, Policy
from threeloops.product.decode import BlockManager, LookupDraft, ModelRunner, SpeculativeRunner
from threeloops.product.request import Finish, Request, Sampling

MODEL = random_model()
PROMPT = tuple(range(3, 29))


def engine(blocks=40, **policy):
    return Engine(ModelRunner(MODEL, blocks, 4), BlockManager(blocks, 4), Policy(**policy))


def asking(id="a", prompt=PROMPT, top=3, **sampling):
    return Request(id, prompt, Sampling(**{"max_tokens": 6, **sampling}, prompt_logprobs=top))


def assert_reported(request, top=3):
    rows = MODEL(torch.tensor([request.prompt]))[0, :-1].log_softmax(-1)
    assert len(request.prompt_logprobs) == len(request.prompt) - 1
    for row, token, found in zip(rows, request.prompt[1:], request.prompt_logprobs, strict=True):
        assert found.logprob == pytest.approx(row[token].item(), abs=1e-9)
        values, places = row.topk(top)
        assert [place for place, _ in found.top] == places.tolist()
        assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-9)


@pytest.mark.parametrize("budget", [5, 512])
@pytest.mark.parametrize("top", [0, 3])
def test_a_prompt_is_reported_whatever_its_chunks_are_and_its_answer_is_the_same(budget, top):
    asked, plain = asking(top=top), Request("b", PROMPT, Sampling(6))
    engine(token_budget=budget).run([asked, plain, Request("c", (5, 6, 7), Sampling(6))])
    assert_reported(asked, top)
    assert asked.output == plain.output and not plain.prompt_logprobs and len(asked.logprobs) == 0


def test_a_preempted_request_reports_each_token_once():
    """Twelve blocks hold the prompts of two requests, and not their answers."""
    requests = [asking("a", PROMPT[:20], max_tokens=20), asking("b", PROMPT[1:21], max_tokens=20)]
    engine(blocks=12, token_budget=8).run(requests)
    assert sum(request.preemptions for request in requests)
    for request in requests:
        assert_reported(request)


def test_a_prompt_that_the_cache_has_is_computed_again():
    one, again, plain = asking("a"), asking("b"), Request("c", PROMPT, Sampling(6))
    running = engine()
    for request in (one, again, plain):
        running.run([request])
    assert_reported(again)
    assert (again.cached_first, plain.cached_first) == (0, 24)


def test_a_fork_that_asks_for_its_prompt_computes_it():
    running, first, fork = engine(), Request("a", PROMPT, Sampling(6)), asking("b")
    running.add(first)
    running.step()
    running.fork("a", fork)
    running.run()
    assert_reported(fork)


def test_a_prompt_of_one_token_has_nothing_to_report():
    asked = asking(prompt=(7,))
    engine().run([asked])
    assert asked.finish is Finish.LENGTH and not asked.prompt_logprobs


def test_equal_tokens_are_listed_in_their_order():
    model = random_model()
    model.head.weight[40:50] = model.head.weight[40]
    model.head.weight[40:50] *= 20
    asked = asking(top=4)
    Engine(ModelRunner(model, 40, 4), BlockManager(40, 4)).run([asked])
    tops = [[place for place, _ in found.top] for found in asked.prompt_logprobs]
    assert [40, 41, 42, 43] in tops


def test_logits_that_overflow_within_a_prompt_end_the_request():
    model = random_model(dtype=torch.float16)
    model.head.weight[7] = 65504
    asked, plain = asking(), Request("b", (7, 8), Sampling(1))
    Engine(ModelRunner(model, 40, 4), BlockManager(40, 4)).run([asked, plain])
    assert asked.finish is Finish.ERROR and "not finite" in asked.error


def test_speculative_decoding_refuses_to_report():
    runner = SpeculativeRunner(MODEL, LookupDraft(), 40, 4)
    with pytest.raises(ValueError, match="speculative decoding has no penalties, biases, grammars or logprobs"):
        Engine(runner, BlockManager(40, 4)).run([asking()])
