"""Speculative decoding: the model's own tokens and distribution, whatever the draft, in fewer steps."""

import itertools
import math
from collections import Counter

import pytest
import torch
from decoding import greedy_alone, logits_alone, random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.product.batching.engine import Engine
from threeloops.product.batching.scheduler import Policy
from threeloops.product.decode import (
    BlockManager,
    Guess,
    LookupDraft,
    ModelDraft,
    ModelRunner,
    SpeculativeRunner,
    accept,
    expected_speedup,
    expected_tokens,
)
from threeloops.product.decode.sampling import draw
from threeloops.product.decode.speculative import DRAFT_NOISE, judge
from threeloops.product.request import Batch, Chunk, Request, Sampling

MODEL = random_model()
SMALL = random_model(seed=5, layers=1)
DRAFTS = {
    "another model": lambda: ModelDraft(SMALL),
    "the model itself": lambda: ModelDraft(MODEL),
    "lookup": LookupDraft,
}
each_draft = pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)


class Fixed:
    """A draft that guesses what it is told; and what it was asked."""

    def __init__(self, guess):
        self.guess, self.asked = guess, []

    def join(self, config, blocks, block_size):
        pass

    def propose(self, batch, stream):
        self.asked += [chunk.guesses for chunk in batch.chunks]
        return [self.guess(chunk.request, chunk.guesses) for chunk in batch.chunks]


def engine_of(draft, model=MODEL, blocks=40, size=4, *, invariant=False, **policy):
    runner = SpeculativeRunner(model, draft, blocks, size, invariant=invariant)
    return Engine(runner, BlockManager(blocks, size), Policy(**{"guesses": 3, **policy}))


def distribution(values):
    values = torch.tensor(values, dtype=torch.float64)
    return values / values.sum()


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any),
    st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any),
)
def test_a_judged_guess_is_distributed_as_the_model(model, draft):
    """Exactly: over every guess, by its chance, and noise in the middle of each of 200 equal parts."""
    p, q, parts = distribution(model), distribution(draft), 200
    found = torch.zeros(4, dtype=torch.float64)
    for guess in q.nonzero()[:, 0].tolist():
        for part in range(parts):
            noise = torch.tensor([(part + 0.5) / parts])
            kept, chances = accept([guess], q[None], torch.stack([p, p]), noise)
            if kept:
                found[guess] += q[guess] / parts
            else:
                found += chances / chances.sum() * q[guess] / parts
    torch.testing.assert_close(found, p, rtol=0, atol=2 / parts)


def test_guesses_after_the_first_that_is_not_kept_do_not_count():
    sure = torch.eye(3)
    model = sure[[0, 1, 2, 0]]
    for guesses, kept, then in (([0, 1, 2], 3, 0), ([0, 1, 0], 2, 2), ([1, 1, 2], 0, 0), ([0, 0, 2], 1, 1)):
        count, chances = accept(guesses, sure[guesses], model, torch.full((3,), 0.999))
        assert (count, int(chances.argmax())) == (kept, then)
    assert accept([], sure[[]], sure[[1]], torch.empty(0))[0] == 0


def test_what_the_draft_likes_too_much_is_kept_in_proportion():
    p, q = torch.tensor([[0.25, 0.75]] * 2), torch.tensor([[0.5, 0.5]])
    assert accept([0], q, p, torch.tensor([0.499]))[0] == 1
    kept, excess = accept([0], q, p, torch.tensor([0.501]))
    assert kept == 0 and excess.tolist() == [0, 0.25], "what the model likes more is all that is left"
    assert accept([1], q, p, torch.tensor([0.9999]))[0] == 1


def test_rounding_that_leaves_no_excess_leaves_the_model_itself():
    p = torch.tensor([[0.5, 0.5]] * 2)
    kept, chances = accept([0], torch.tensor([[0.5 + 1e-7, 0.5]]), p, torch.tensor([1.0]))
    assert kept == 0 and chances.tolist() == [0.5, 0.5]


@settings(max_examples=12)
@given(st.data())
def test_greedy_tokens_are_those_without_a_draft(data):
    """Under preemption, prefix hits, chunked prompts and a budget that leaves room for fewer guesses."""
    draft = data.draw(st.sampled_from(list(DRAFTS)), label="draft")
    size = data.draw(st.sampled_from([1, 3, 4]), label="block size")
    blocks = data.draw(st.integers(-(-26 // size), -(-70 // size)), label="blocks")
    policy = {
        "guesses": data.draw(st.integers(1, 5), label="guesses"),
        "token_budget": data.draw(st.sampled_from([3, 8, 64]), label="budget"),
        "chunked": data.draw(st.booleans(), label="chunked"),
        "prefix_cache": data.draw(st.booleans(), label="prefix cache"),
    }
    lengths = data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=5), label="prompts")
    kinds = [data.draw(st.integers(0, 2)) for _ in lengths]
    engine = engine_of(DRAFTS[draft](), blocks=blocks, size=size, **policy)
    requests = [
        Request(str(i), tuple((kind * 7 + j) % 61 for j in range(length)), Sampling(max_tokens=5 + i))
        for i, (length, kind) in enumerate(zip(lengths, kinds, strict=True))
    ]
    engine.run(requests)
    for each in requests:
        assert each.output == greedy_alone(MODEL, each.prompt, each.sampling.max_tokens)
    engine.scheduler.blocks.check_integrity([])


@pytest.mark.parametrize("guesses", [1, 3, 4])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 7])
def test_a_draft_that_is_the_model_is_always_right(guesses, prompt):
    """Only if what it computed stays in step with the model, also over the ends of blocks and a found prefix."""
    engine = engine_of(ModelDraft(MODEL), guesses=guesses)
    tokens = tuple(range(10, 10 + prompt))
    first = Request("a", tokens, Sampling(max_tokens=14))
    engine.run([first])
    second = Request("b", (*tokens, *first.output), Sampling(max_tokens=14))
    engine.run([second])
    assert second.cached >= 8
    runner = engine.executor
    assert runner.acceptance == 1 and runner.judged == runner.kept >= 12
    hot = Request("c", (*tokens, 50), Sampling(max_tokens=14, temperature=1.5, seed=4))
    engine.run([hot])
    assert runner.acceptance == 1, "p = q, so every guess is kept at any temperature"


def test_in_the_invariant_way_a_draft_that_is_the_model_is_right_at_any_temperature():
    engine = engine_of(ModelDraft(MODEL), invariant=True)
    engine.run([Request("a", (1, 2, 3), Sampling(max_tokens=14, temperature=1.5, seed=4))])
    assert engine.executor.acceptance == 1, "both draw with the same noise"


def test_the_draft_has_its_own_copy_of_a_block_that_two_requests_shared():
    draft, first = ModelDraft(MODEL), Request("a", (9, 8, 7, 6, 5, 4, 3), Sampling(max_tokens=9))
    draft.join(MODEL.config, 4, 4)
    first.block_table = [0, 1]
    with torch.inference_mode():
        draft.propose(Batch((Chunk(first, 7),)), 1)
        second = Request("b", (*first.prompt, 51), Sampling(max_tokens=9))
        second.block_table, second.computed = [0, 2, 3], 7
        (guess,) = draft.propose(Batch((Chunk(second, 1, 4),), copies=((1, 2),)), 1)
    assert guess.tokens == greedy_alone(MODEL, second.prompt, 4)


def test_steps_are_saved():
    prompt, count = (1, 2, 3), 13
    for guesses, steps in ((1, 7), (3, 4), (5, 3)):
        engine = engine_of(ModelDraft(MODEL), guesses=guesses)
        engine.add(Request("a", prompt, Sampling(max_tokens=count)))
        made = 0
        while engine.requests:
            engine.step()
            made += 1
        assert made == 1 + -(-(count - 1) // (guesses + 1)) == steps, "the prompt's step has no guesses"


def test_a_rejected_guess_is_not_computed():
    """The block table may hold it; `computed` and the next step's rows do not."""
    right = greedy_alone(MODEL, (1, 2, 3), 12)

    def two_right_then_wrong(request, count):
        at = len(request.output)
        return Guess([*right[at : at + 2], (right[min(at + 2, 11)] + 1) % 61][:count])

    engine = engine_of(Fixed(two_right_then_wrong))
    one = Request("a", (1, 2, 3), Sampling(max_tokens=12))
    engine.add(one)
    engine.step()
    for _ in range(3):
        before = len(one.output)
        engine.step()
        assert len(one.output) == before + 3 and one.computed == one.length - 1
    engine.run([])
    assert one.output == right


def test_a_stop_token_among_the_guesses_ends_the_request():
    right = greedy_alone(MODEL, (1, 2, 3), 12)
    place = next(i for i in range(2, 12) if right[i] not in right[:i])
    one = Request("a", (1, 2, 3), Sampling(max_tokens=12, stop=frozenset({right[place]})))
    engine_of(ModelDraft(MODEL), guesses=5).run([one])
    assert one.output == right[: place + 1]


def test_never_more_tokens_than_asked_for():
    for count in range(1, 8):
        one = Request("a", (1, 2, 3), Sampling(max_tokens=count))
        engine_of(ModelDraft(MODEL), guesses=4).run([one])
        assert one.output == greedy_alone(MODEL, (1, 2, 3), count)


def test_noise_that_judges_a_guess_is_not_the_noise_that_drew_it():
    """One guess after another, by the draft's own stream, where draft and model want opposite things."""
    p, q = distribution([1, 2, 3, 4]), distribution([4, 3, 2, 1])
    counts = Counter()
    for seed in range(4000):
        (guess,) = draw(q[None], [seed], [2], stream=DRAFT_NOISE).tolist()
        request = Request("a", (1, 2), Sampling(temperature=1.0, seed=seed))
        counts[judge(request, Guess([guess], q[None]), torch.stack([p, p]).log())[0]] += 1
    assert abs(chi_square(counts, dict(enumerate(p.tolist())))) < 5


VOCABULARY, DRAWN = 5, 3
TINY = random_model(seed=8, vocabulary_size=VOCABULARY, layers=1)
TINY_DRAFT = random_model(seed=9, vocabulary_size=VOCABULARY, layers=1)
BROKEN = random_model(seed=9, vocabulary_size=VOCABULARY, layers=1)
BROKEN.norm.weight[0] = torch.nan


def chances_alone(model, sampling, prompt, count):
    """The chance of every continuation of `count` tokens, by the model alone and arithmetic written down here."""
    found = {(): 1.0}
    for _ in range(count):
        longer = {}
        for tokens, chance in found.items():
            logits = (logits_alone(model, (*prompt, *tokens)) / sampling.temperature).tolist()
            if sampling.top_k:
                least = sorted(logits)[-sampling.top_k]
                logits = [value if value >= least else -math.inf for value in logits]
            weights = [math.exp(value - max(logits)) for value in logits]
            for token, weight in enumerate(weights):
                longer[(*tokens, token)] = chance * weight / sum(weights)
        found = longer
    return found


def chi_square(counts, chances):
    """In deviations from its mean; cells with few expected draws are left out."""
    total = sum(counts.values())
    cells = [cell for cell, chance in chances.items() if chance * total >= 5]
    statistic = sum((counts[cell] - total * chances[cell]) ** 2 / (total * chances[cell]) for cell in cells)
    return (statistic - len(cells)) / math.sqrt(2 * len(cells))


ALL_TOKENS, THREE = {"temperature": 1.5}, {"temperature": 2.0, "top_k": 3}


@pytest.mark.parametrize("invariant", [False, True], ids=["rejection", "invariant"])
@pytest.mark.parametrize(
    ("draft", "sampling"),
    [
        ("model", ALL_TOKENS),
        ("broken", ALL_TOKENS),
        ("lookup", ALL_TOKENS),
        ("model", THREE),
        # Each of these drafts is tried above, and so is top_k, which leaves the draft as it is.
        pytest.param("broken", THREE, marks=pytest.mark.slow),
        pytest.param("lookup", THREE, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_sampled_tokens_are_distributed_as_without_a_draft(draft, sampling, invariant):
    """Chi-square over all continuations of three tokens."""
    prompt, count = (1, 2, 1, 2, 1), 1500
    engine = engine_of(
        {"model": ModelDraft(TINY_DRAFT), "broken": ModelDraft(BROKEN), "lookup": LookupDraft()}[draft],
        TINY, blocks=150, guesses=2, token_budget=4000, max_running=count // 2, invariant=invariant,
    )  # fmt: skip
    requests = [Request(str(seed), prompt, Sampling(max_tokens=DRAWN, seed=seed, **sampling)) for seed in range(count)]
    engine.run(requests)
    counts = Counter(tuple(each.output) for each in requests)
    assert engine.executor.judged > count / 3 and 0.1 < engine.executor.acceptance < 0.95
    chances = chances_alone(TINY, requests[0].sampling, prompt, DRAWN)
    assert all(chances[tokens] > 0 for tokens in counts)
    assert abs(chi_square(counts, chances)) < 5
    others = chances_alone(TINY_DRAFT, requests[0].sampling, prompt, DRAWN)
    assert chi_square(counts, {cell: max(chance, 1e-3) for cell, chance in others.items()}) > 20, "the draft's own"


def test_invariant_tokens_are_those_that_the_seed_gives_without_a_draft():
    """Whatever there was room for: budgets, batches and drafts differ, the tokens do not."""
    requests = [((i, 2 * i, 3), Sampling(max_tokens=8, temperature=1.3, seed=i)) for i in range(6)]

    def outputs(engine):
        made = [Request(str(i), *each) for i, each in enumerate(requests)]
        engine.run(made)
        return [each.output for each in made]

    expected = outputs(Engine(ModelRunner(MODEL, 40, 4), BlockManager(40, 4)))
    for draft, budget, blocks in ((ModelDraft(MODEL), 64, 40), (ModelDraft(SMALL), 9, 40), (LookupDraft(), 5, 11)):
        assert outputs(engine_of(draft, blocks=blocks, token_budget=budget, invariant=True)) == expected


def test_a_request_draws_the_same_whatever_the_others_do_if_it_has_room_for_its_guesses():
    one = (3, 1, 4), Sampling(max_tokens=9, temperature=1.3, seed=77)
    found = []
    for others in (0, 1, 5):
        requests = [Request("one", *one)]
        requests += [Request(str(i), (i,), Sampling(max_tokens=4 + i, temperature=1.0, seed=i)) for i in range(others)]
        engine_of(ModelDraft(SMALL), token_budget=400).run(requests)
        found.append(requests[0].output)
    assert found[0] == found[1] == found[2]


def test_a_guess_that_breaks_the_model_costs_nobody_anything():
    """Its embedding is NaN. It is not kept, and its keys are not left behind where a later row could meet them."""
    model = random_model(tied_embeddings=False)
    model.embedding.weight[60], model.head.weight[60] = torch.nan, 0
    engine = engine_of(Fixed(lambda request, count: Guess([60] * count)), model, size=16, guesses=4)
    one = Request("a", (1, 2, 3), Sampling(max_tokens=9))
    engine.run([one])
    assert one.output == greedy_alone(model, (1, 2, 3), 9)


def test_a_draft_that_breaks_down_guesses_badly_and_that_is_all():
    broken = random_model(seed=3, layers=1)
    broken.embedding.weight[7] = torch.nan
    requests = [Request(str(i), (7, i, 2), Sampling(max_tokens=8, temperature=float(i % 2))) for i in range(4)]
    engine_of(ModelDraft(broken)).run(requests)
    for each in requests[::2]:
        assert each.output == greedy_alone(MODEL, each.prompt, 8)
    assert all(len(each.output) == 8 for each in requests)


@pytest.mark.parametrize(
    ("tokens", "longest", "count", "guess"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 3, 2, [9, 1]),
        ([1, 2, 3, 9, 1, 2, 3], 3, 9, [9, 1, 2, 3]),
        ([5, 3, 8, 6, 3, 7, 3], 2, 1, [7]),  # the last time, not the first
        ([2, 3, 4, 7, 3, 5, 2, 3], 2, 1, [4]),  # the longer match, though it is older
        ([2, 3, 4, 7, 3, 5, 2, 3], 1, 1, [5]),
        ([4, 4, 4], 3, 2, [4]),
        ([1, 2, 3], 3, 2, []),
        ([1], 3, 2, []),
        ([1, 1], 3, 0, []),
    ],
)
def test_lookup_proposes_what_followed(tokens, longest, count, guess):
    assert LookupDraft(longest)._followed(tuple(tokens), count) == guess


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("guesses", [0, 1, 4])
def test_expected_tokens_are_those_of_every_outcome(acceptance, guesses):
    total = 0.0
    for outcome in itertools.product([True, False], repeat=guesses):
        chance = math.prod(acceptance if kept else 1 - acceptance for kept in outcome)
        leading = next((i for i, kept in enumerate(outcome) if not kept), guesses)
        total += chance * (leading + 1)
    assert expected_tokens(acceptance, guesses) == pytest.approx(total)
    if acceptance < 1:
        closed = (1 - acceptance ** (guesses + 1)) / (1 - acceptance)
        assert expected_tokens(acceptance, guesses) == pytest.approx(closed)
    assert expected_speedup(acceptance, guesses, 0.1) == pytest.approx(total / (1 + 0.1 * guesses))


def test_measured_tokens_per_step_are_those_of_the_formula():
    """Where each guess is kept with the same chance: a draft that is right two times in three."""
    right = greedy_alone(MODEL, (1, 2, 3), 110)
    wrong = torch.rand(110, generator=torch.Generator().manual_seed(1)) < 1 / 3

    def guess(request, count):
        at = len(request.output)
        return Guess([(right[i] + int(wrong[i])) % 61 for i in range(at, min(at + count, 110))])

    engine = engine_of(Fixed(guess), guesses=3)
    engine.add(one := Request("a", (1, 2, 3), Sampling(max_tokens=110)))
    steps = 0
    while engine.requests:
        engine.step()
        steps += 1
    assert one.output == right
    measured = (110 - 1) / (steps - 1)
    assert measured == pytest.approx(expected_tokens(engine.executor.acceptance, 3), rel=0.1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"vocabulary_size": 60}, "vocabulary_size = 60, the model 61"), ({"max_sequence": 64}, "max_sequence = 64")],
)
def test_a_draft_that_does_not_fit_is_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeRunner(MODEL, ModelDraft(random_model(layers=1, **sizes)), 4, 4)
    with pytest.raises(ValueError, match="longest = 0"):
        LookupDraft(0)
