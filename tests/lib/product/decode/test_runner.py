"""The runner: what a step gives to each request, and that one that goes wrong goes alone."""

import copy

import pytest
import torch
from decoding import greedy_alone, random_model
from dispatched import Operators
from threeloops.product.batching.engine import Engine
from threeloops.product.batching.scheduler import Policy
from threeloops.product.decode import BlockManager, LookupDraft, ModelDraft, ModelRunner, SpeculativeRunner
from threeloops.product.request import Batch, Chunk, Finish, Request, Sampling

POISON = 60
"""A token whose embedding is not a number."""


def poisoned():
    model = random_model(tied_embeddings=False)
    model.embedding.weight[POISON] = torch.nan
    model.head.weight[POISON] = 0  # so that nobody comes upon it by themselves
    return model


MODEL = random_model()
SMALL = random_model(seed=1, layers=1)
RUNNERS = {
    "plain": lambda model, blocks, size: ModelRunner(model, blocks, size),
    "lookup": lambda model, blocks, size: SpeculativeRunner(model, LookupDraft(), blocks, size),
    "draft": lambda model, blocks, size: SpeculativeRunner(model, ModelDraft(copy.deepcopy(model)), blocks, size),
}
each_runner = pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)


def engine_of(runner, model, blocks=30, size=4, **policy):
    return Engine(runner(model, blocks, size), BlockManager(blocks, size), Policy(**policy))


def request(id, prompt, count=6, **sampling):
    return Request(id, tuple(prompt), Sampling(max_tokens=count, **sampling))


@torch.inference_mode()
def execute(runner, *requests):
    return runner.execute(Batch(tuple(Chunk(each, each.uncomputed) for each in requests)))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_only_a_chunk_that_reaches_the_last_token_samples(count):
    runner, one = ModelRunner(MODEL, 4, 2), request("a", [7, 8, 9, 10])
    one.block_table = [3, 1]
    (found,) = runner.execute(Batch((Chunk(one, count),)))
    assert list(found) == (greedy_alone(MODEL, one.prompt, 1) if count == 4 else [])


def test_chunks_with_and_without_a_sample_in_one_step():
    runner = ModelRunner(MODEL, 8, 4)
    requests = [request(id, range(start, start + 6)) for id, start in (("a", 1), ("b", 20), ("c", 40))]
    for each, table in zip(requests, ([0, 1], [2, 3], [4, 5]), strict=True):
        each.block_table = table
    found = runner.execute(Batch((Chunk(requests[0], 6), Chunk(requests[1], 5), Chunk(requests[2], 6))))
    assert [list(each) for each in found] == [
        greedy_alone(MODEL, requests[0].prompt, 1),
        [],
        greedy_alone(MODEL, requests[2].prompt, 1),
    ]


@each_runner
@pytest.mark.parametrize("budget", [5, 64])
def test_a_request_whose_logits_are_not_finite_ends_alone(runner, budget):
    """Whoever shares its prefix, or gets its blocks, is unharmed; and it ends in the same way when it comes again."""
    model = poisoned()
    engine = engine_of(runner, model, blocks=14, token_budget=budget, guesses=2)
    prefix = list(range(9))
    bad = [request(f"bad {i}", [*prefix, POISON, 3, 4, 5, 6, 7, 8]) for i in range(3)]
    good = [request(f"good {i}", [*prefix, i, 11, 12]) for i in range(6)]
    for first, second in zip(bad, good, strict=False):
        engine.run([first, second])
    engine.run(good[3:])
    for each in bad:
        assert each.finish is Finish.ERROR and not each.output
        assert f"request '{each.id}': tokens" in each.error and "give numbers that are not finite" in each.error
    for each in good:
        assert each.finish is Finish.LENGTH and each.output == greedy_alone(model, each.prompt, 6)
    engine.scheduler.blocks.check_integrity([])


@each_runner
def test_blocks_are_clean_for_the_next_holder_also_of_a_request_that_was_cancelled(runner):
    """Cancelled in the middle of a prompt, whose logits nobody saw; the pool is so small that its blocks come next."""
    model = poisoned()
    engine = engine_of(runner, model, blocks=4, size=4, token_budget=4, prefix_cache=False)
    engine.add(request("bad", [POISON] * 12, count=2))
    engine.step()
    engine.step()
    engine.cancel("bad")
    good = [request("good", [1, 2, 3, 4, 5], count=8)]
    engine.run(good)
    assert good[0].output == greedy_alone(model, good[0].prompt, 8)


@each_runner
@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ([1, 61], 1, "token 1 of the prompt is 61; expected a whole number from 0 to 60"),
        ([-1], 1, "token 0 of the prompt is -1"),
        ([1.0], 1, "token 0 of the prompt is 1.0"),
        (["a"], 1, "token 0 of the prompt is 'a'"),
        ([1] * 100, 30, "need 129 positions; the model has max_sequence = 128"),
    ],
)
def test_a_request_that_the_model_cannot_compute_is_refused(runner, prompt, count, message):
    with pytest.raises(ValueError, match=f"request 'r': .*{message}"):
        runner(MODEL, 4, 4).check(request("r", prompt, count))


@each_runner
def test_a_request_that_just_fits_is_not_refused(runner):
    runner(MODEL, 40, 4).check(request("r", [0, 60] * 50, 29))


@torch.inference_mode()
def test_logits_in_float16_are_checked_by_their_sum_even_if_float16_could_not_hold_it():
    model = random_model(dtype=torch.float16)
    model.head.weight.fill_(1000)
    runner, one = ModelRunner(model, 4, 4), request("a", [7, 8, 9])
    one.block_table = [0]
    with Operators() as operators:
        logits, finite = runner.logits([Chunk(one, 3)])
    assert finite == [True] and logits.isfinite().all() and logits.sum().isinf()
    assert "aten::sum" in operators.names and not [name for name in operators.names if "isfinite" in name]


def test_the_error_names_the_dtype():
    runner, bad = ModelRunner(poisoned().to(torch.bfloat16), 2, 4), request("x", [POISON])
    bad.block_table = [0]
    (error,) = execute(runner, bad)
    assert isinstance(error, ArithmeticError) and "torch.bfloat16" in str(error)
