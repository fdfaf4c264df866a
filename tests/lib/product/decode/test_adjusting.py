"""Biases and penalties against their definitions in float64 and against transformers' processors, and that a request
gets the same tokens whatever it is batched with and however often it was preempted."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import Engine, Policy
from threeloops.product.decode import BlockManager, ModelRunner, generate
from threeloops.product.decode.sampling import Adjuster, note_logprobs, probabilities
from threeloops.product.decode.speculative import LookupDraft, SpeculativeRunner
from threeloops.product.request import Request, Sampling

VOCABULARY = 12
TOKEN = st.integers(0, VOCABULARY - 1)
LOGITS = st.lists(st.floats(-20, 20), min_size=VOCABULARY, max_size=VOCABULARY)
SAMPLINGS = st.builds(
    Sampling,
    stop=st.frozensets(TOKEN, max_size=2),
    min_tokens=st.integers(0, 4),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(TOKEN, st.floats(-100, 100), max_size=3).map(lambda biases: tuple(biases.items())),
)


def request(prompt=(1,), output=(), **sampling):
    made = Request("r", tuple(prompt), Sampling(**sampling))
    made.output = list(output)
    return made


def adjusted(logits, asked):
    found, failures = Adjuster().adjusted(torch.tensor([logits], dtype=torch.float64), {0: asked})
    assert not failures
    return found[0].tolist()


def oracle(logits, prompt, output, sampling):
    """One row in Python's own numbers, as OpenAI and vLLM document it."""
    found = []
    for token, logit in enumerate(logits):
        if token in sampling.stop and len(output) < sampling.min_tokens:
            logit = -math.inf
        logit += dict(sampling.logit_bias).get(token, 0.0)
        if token in prompt or token in output:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        count = output.count(token)
        found.append(logit - count * sampling.frequency_penalty - (count > 0) * sampling.presence_penalty)
    return found


@given(LOGITS, st.lists(TOKEN, min_size=1, max_size=5), st.lists(TOKEN, max_size=6), SAMPLINGS)
def test_logits_are_adjusted_as_they_are_defined(logits, prompt, output, sampling):
    asked = Request("r", tuple(prompt), sampling)
    asked.output = output
    assert adjusted(logits, asked) == pytest.approx(oracle(logits, prompt, output, sampling), abs=1e-12)


@given(LOGITS, st.lists(TOKEN, min_size=1, max_size=8), SAMPLINGS)
def test_what_was_counted_before_is_not_counted_again(logits, output, sampling):
    """An adjuster that saw every step, and one that sees the last."""
    asked, seen = Request("r", (1, 2), sampling), Adjuster()
    rows = torch.tensor([logits], dtype=torch.float64)
    for token in output:
        seen.adjusted(rows, {0: asked})
        asked.output.append(token)
    assert torch.equal(seen.adjusted(rows, {0: asked})[0], Adjuster().adjusted(rows, {0: asked})[0])


@pytest.mark.parametrize("penalty", [0.7, 1.0001, 1.5])
def test_the_repetition_penalty_is_that_of_transformers(penalty):
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.linspace(-3, 3, VOCABULARY)
    asked = request((1, 2, 2), (7, 11), repetition_penalty=penalty)
    theirs = processors.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([asked.tokens]), logits[None].clone())
    assert adjusted(logits.tolist(), asked) == pytest.approx(theirs[0].tolist(), rel=1e-6)


@pytest.mark.parametrize("output", [(), (4,), (4, 5), (4, 5, 6)])
def test_the_least_length_is_that_of_transformers(output):
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.linspace(-3, 3, VOCABULARY)
    asked = request((1, 2), output, min_tokens=2, stop=frozenset({3, 9}))
    theirs = processors.MinNewTokensLengthLogitsProcessor(2, 2, [3, 9])
    expected = theirs(torch.tensor([asked.tokens]), logits[None].clone())
    assert adjusted(logits.tolist(), asked) == pytest.approx(expected[0].tolist(), rel=1e-6)


def test_a_bias_is_that_of_transformers():
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.linspace(-3, 3, VOCABULARY)
    theirs = processors.SequenceBiasLogitsProcessor([[[3], 2.5], [[0], -100.0]])
    expected = theirs(torch.tensor([[1]]), logits[None].clone())
    asked = request(logit_bias=((3, 2.5), (0, -100.0)))
    assert adjusted(logits.tolist(), asked) == pytest.approx(expected[0].tolist(), rel=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("min_p", [1e-300, 0.01, 0.3, 1.0])
def test_min_p_is_that_of_transformers(min_p, temperature):
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.linspace(-3, 3, VOCABULARY, dtype=torch.float64)[None]
    expected = processors.MinPLogitsWarper(min_p)(None, logits / temperature).softmax(-1)
    found = probabilities(logits, [Sampling(temperature=temperature, min_p=min_p)])
    assert found[0].tolist() == pytest.approx(expected[0].tolist(), abs=1e-12)


def test_min_p_comes_before_top_p():
    """vLLM's order: top_p is a share of what min_p has left. Here 0.5 of all chances are the first token's, and 0.5 of
    those that min_p leaves are the first two tokens'."""
    logits = torch.tensor([[0.4, 0.3, 0.1, 0.1, 0.1]], dtype=torch.float64).log()
    both = probabilities(logits, [Sampling(temperature=1.0, min_p=0.5, top_p=0.6)])
    assert both[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0, 0])
    assert (probabilities(logits, [Sampling(temperature=1.0, min_p=0.5, top_p=0.57)])[0] > 0).sum() == 1


def model():
    torch.manual_seed(0)
    return GPT(GPTConfig(VOCABULARY, layers=1, heads=2, kv_heads=2, width=16, mlp_width=16, max_sequence=64)).double()


def run(requests, blocks=64, **policy):
    engine = Engine(ModelRunner(model(), blocks, 4), BlockManager(blocks, 4), Policy(**policy))
    engine.run(requests)
    return [asked.output for asked in requests]


KINDS = [
    {"max_tokens": 20},
    {"max_tokens": 20, "repetition_penalty": 9.0, "logprobs": 2},
    {"max_tokens": 20, "presence_penalty": 2.0, "frequency_penalty": 0.5, "temperature": 0.8, "seed": 3},
    {"max_tokens": 20, "logit_bias": ((5, 100.0),)},
]


def test_a_request_gets_the_same_whatever_it_is_batched_with_and_preempted():
    def asked():
        return [Request(str(n), (n, 2, 3), Sampling(**kind)) for n, kind in enumerate(KINDS)]

    alone = [run([one])[0] for one in asked()]
    together = asked()
    assert run(together) == alone
    crowded = asked()
    assert run(crowded, blocks=9) == alone and any(one.preemptions for one in crowded)
    assert [len(one.logprobs) for one in together] == [0, 20, 0, 0]
    assert alone[3] == [5] * 20
    assert alone[0] != alone[1], "the penalty changes something"


def test_greedy_decoding_without_a_forward_pass_in_common_agrees():
    """The engine's tokens, and a loop that computes everything anew and applies the oracle."""
    sampling = Sampling(max_tokens=15, repetition_penalty=1.4, presence_penalty=0.5, logit_bias=((3, -1.5),))
    asked = Request("r", (1, 2), sampling)
    run([asked])
    net, output = model(), []
    for _ in range(15):
        logits = net(torch.tensor([[1, 2, *output]]))[0, -1].tolist()
        shaped = oracle(logits, [1, 2], output, sampling)
        output.append(shaped.index(max(shaped)))
    assert asked.output == output


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_logprobs_are_the_models_own(count):
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 9.0]])
    plain, asked = request(), request(logprobs=count, temperature=2.0, logit_bias=((0, 50.0),))
    note_logprobs(logits, [plain, asked], [0, 3])
    assert plain.logprobs == []
    (found,) = asked.logprobs
    expected = logits[1].double().log_softmax(-1)
    assert found.logprob == pytest.approx(expected[3].item(), abs=1e-6)
    assert [token for token, _ in found.top] == [3, 0, 1, 2][:count]
    assert [value for _, value in found.top] == pytest.approx(
        [expected[token].item() for token, _ in found.top], abs=1e-6
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"logit_bias": ((VOCABULARY, 1.0),)}, "logit_bias: token 12 is not in the model's vocabulary of 12 tokens"),
        ({"grammar": "start: /a/"}, "grammar: this engine cannot follow grammars: pass `grammars=Grammars"),
    ],
)
def test_what_cannot_be_adjusted_is_refused_before_it_joins(wrong, told):
    with pytest.raises(ValueError, match=told):
        ModelRunner(model(), 8, 4).check(request(**wrong))


@pytest.mark.parametrize("wrong", [{"presence_penalty": 1.0}, {"logprobs": 0}, {"logit_bias": ((1, 1.0),)}])
def test_executors_that_cannot_adjust_say_so(wrong):
    with pytest.raises(ValueError, match="static batching has no penalties"):
        generate(model(), [[1]], Sampling(**wrong))
    with pytest.raises(ValueError, match="speculative decoding has no penalties"):
        SpeculativeRunner(model(), LookupDraft(), 8, 4).check(request(**wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_p": -0.1}, {"min_p": 1.1}, {"min_p": math.nan}, {"repetition_penalty": 0}, {"repetition_penalty": -1.0},
        {"presence_penalty": math.inf}, {"frequency_penalty": math.nan}, {"logit_bias": ((1, math.nan),)},
        {"min_tokens": -1}, {"min_tokens": 1.5}, {"logprobs": -1}, {"logprobs": True},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)
