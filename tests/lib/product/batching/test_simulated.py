"""Steps in virtual time: what they cost, and that the scheduler does the same on both clocks."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_fuzz import small_model
from threeloops.hardware import accelerator
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import (
    CHUNKED,
    POLICIES,
    Engine,
    RooflineCost,
    SimulatedExecutor,
    StepShape,
    fit,
)
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.batching.simulated import FittedCost, Spread
from threeloops.product.decode.runner import ModelRunner
from threeloops.product.loadgen import (
    SLO,
    bursty,
    conversations,
    lognormal,
    measure,
    poisson,
    replay,
    trace,
    uniform,
)
from threeloops.product.request import Request, Sampling
from threeloops.simulation.clock import VirtualClock

H100 = accelerator("H100")
SMALL = GPTConfig.small()
DECODE, PREFILL = StepShape(((100, 1, True), (40, 1, True))), StepShape(((0, 512, True),))


def test_a_step_has_its_tokens_keys_and_pairs():
    step = StepShape(((10, 1, True), (0, 4, False), (6, 3, True)))
    assert (step.tokens, step.samples) == (8, 2)
    assert step.keys == 11 + 4 + 9
    assert step.pairs == 11 + (1 + 2 + 3 + 4) + (7 + 8 + 9)


def test_a_step_is_read_off_a_batch_before_it_changes():
    engine = Engine(
        SimulatedExecutor(VirtualClock(), lambda step: 1.0), BlockManager(9, 4), replace(CHUNKED, token_budget=4)
    )
    engine.add(Request("a", tuple(range(6)), Sampling(max_tokens=2)))
    shapes = [StepShape.of(engine.step()).chunks for _ in range(3)]
    assert shapes == [((0, 4, False),), ((4, 2, True),), ((6, 1, True),)]


def test_decoding_reads_all_weights_once_and_the_keys_and_values_of_everybody():
    tiny = GPTConfig.tiny()
    cost = RooflineCost(tiny, H100)
    per_token = 2 * 2 * 2 * 16 * 2  # keys and values, layers, key-value heads, their width, bytes
    assert cost.kv_bytes_per_token == per_token
    weights = sum(weight.numel() for weight in GPT(tiny).parameters() if weight.ndim == 2)
    work = cost.work(DECODE)
    assert work.bytes == 2 * weights + (101 + 41 + 2) * per_token
    assert work.flops == 2 * 2 * weights + 4 * 2 * 64 * (101 + 41)
    assert cost(DECODE) == pytest.approx(work.bytes / 3.35e12, rel=0.01), "decoding is bound by memory"


def test_a_long_prompt_is_bound_by_arithmetic_and_the_head_computes_what_is_sampled():
    cost, head = RooflineCost(SMALL, H100), 50_304 * 768
    body = SMALL.matmul_parameters - head
    work = cost.work(PREFILL)
    assert work.flops == 2 * body * 512 + 2 * head + 4 * 12 * 768 * (512 * 513 // 2)
    silent = cost.work(StepShape(((0, 512, False),)))
    assert work.flops - silent.flops == 2 * head and work.bytes - silent.bytes == 2 * head
    many = StepShape(((0, 8192, True),))
    assert cost(many) == pytest.approx(cost.work(many).flops / 989e12, rel=0.01)


def test_what_is_reached_and_the_overhead_lengthen_a_step():
    bound = RooflineCost(SMALL, H100)
    assert RooflineCost(SMALL, H100, reached=0.5)(DECODE) == pytest.approx(2 * bound(DECODE))
    assert RooflineCost(SMALL, H100, overhead=1e-3)(DECODE) == pytest.approx(bound(DECODE) + 1e-3)
    int8 = RooflineCost(SMALL, H100, "int8", 1)
    assert int8(DECODE) == pytest.approx(bound(DECODE) / 2)
    grouped = RooflineCost(replace(SMALL, kv_heads=3), H100)
    assert grouped.kv_bytes_per_token == bound.kv_bytes_per_token / 4


@pytest.mark.parametrize(
    ("more", "said"),
    [({"reached": 0}, "reached = 0"), ({"reached": 1.1}, "reached = 1.1"), ({"overhead": -1}, "overhead = -1")],
)
def test_a_share_or_an_overhead_that_is_none_is_named(more, said):
    with pytest.raises(ValueError, match=said):
        RooflineCost(SMALL, H100, **more)


def test_a_window_is_refused_and_wide_heads_are_counted():
    with pytest.raises(ValueError, match="sliding_window = 64: this cost counts every key"):
        RooflineCost(replace(SMALL, sliding_window=64), H100)
    wide = replace(SMALL, head_dim=2 * SMALL.head_dim)
    scores = [
        RooflineCost(config, H100).work(DECODE).flops - 2 * DECODE.tokens * config.matmul_parameters
        for config in (SMALL, wide)
    ]
    assert scores[1] == pytest.approx(2 * scores[0])


def some_steps(count=300, seed=0):
    random = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        decodes = [(int(random.integers(1, 500)), 1, True) for _ in range(random.integers(0, 20))]
        prompts = [(int(random.integers(0, 100)), int(random.integers(2, 200)), bool(random.random() < 0.5))
                   for _ in range(random.integers(0, 3))]  # fmt: skip
        steps.append(StepShape(tuple(decodes + prompts) or ((0, 1, True),)))
    return steps


def test_a_cost_that_is_a_sum_is_found_again():
    true = {
        "step": 2e-3,
        "several tokens": 5e-4,
        "chunk": 1e-5,
        "decoded token": 3e-5,
        "prompt token": 7e-6,
        "token beyond 8": 4e-6,
        "sample": 5e-5,
        "key": 1e-7,
        "pair": 4e-9,
        "group": 2e-4,
        "padded key": 3e-7,
    }
    cost = FittedCost(true)
    steps = some_steps()
    found = fit(steps, [cost(step) for step in steps])
    other = some_steps(seed=1)
    assert [found(step) for step in other] == pytest.approx([cost(step) for step in other], rel=1e-3)
    assert found.seconds_per == pytest.approx(true, rel=0.05)


def test_a_cost_counts_each_token_of_its_kind_once():
    step = StepShape(((10, 1, True), (0, 4, False), (6, 3, True)))
    counts = {"step": 1, "several tokens": 1, "chunk": 3, "decoded token": 1, "prompt token": 7, "sample": 2}
    counts |= {"key": 24, "pair": 45, "group": 3, "padded key": 3 * 16, "token beyond 8": 0}
    assert {name: FittedCost({name: 1.0})(step) for name in counts} == counts
    alone = FittedCost({"several tokens": 1.0})
    assert alone(StepShape(((10, 1, True),))) == 0 and alone(StepShape(((0, 2, False),))) == 1
    assert FittedCost({"token beyond 8": 1.0})(StepShape(((0, 20, False),))) == 12


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_no_weight_is_negative_and_no_other_weights_are_better(seed):
    """The conditions of Karush, Kuhn and Tucker: the slope is 0 where a weight is positive, and not negative at 0."""
    random = np.random.default_rng(seed)
    steps = some_steps(60, seed)
    seconds = random.uniform(1e-3, 5e-2, len(steps))
    found = fit(steps, seconds.tolist())
    names = list(found.seconds_per)
    expected = np.array([found(step) for step in steps])
    rows = np.array([[FittedCost({name: 1.0})(step) for name in names] for step in steps]) / expected[:, None]
    rows /= (lengths := np.linalg.norm(rows, axis=0))
    x = np.array([found.seconds_per[name] for name in names]) * lengths
    slope = rows.T @ (rows @ x - seconds / expected)
    assert x.min() >= 0 and slope.min() > -1e-4 and np.abs(slope * x).max() < 1e-4


def test_too_few_steps_or_times_that_are_none_are_refused():
    with pytest.raises(ValueError, match="3 steps and 3 times: expected .* at least 11; record a longer trace"):
        fit(some_steps(3), [1.0] * 3)
    with pytest.raises(ValueError, match="12 steps and 11 times"):
        fit(some_steps(12), [1.0] * 11)
    with pytest.raises(ValueError, match="a step took 0.0 s"):
        fit(some_steps(11), [0.0] * 11)


def test_padding_is_charged_by_group():
    """Tables of 10 and 8 blocks are padded to 10; one of 7 is too short for that, and 3 for 7; 20 rows stand alone."""
    step = StepShape(((159, 1, True), (120, 1, True), (111, 1, True), (40, 1, True), (0, 20, True)))
    assert FittedCost({"group": 1.0})(step) == 4
    assert FittedCost({"padded key": 1.0})(step) == 16 * (2 * 10 + 7 + 3 + 2)
    assert FittedCost({"padded key": 1.0}, block_size=200)(step) == 200 * 5


TRUE = FittedCost({"step": 2e-3, "sample": 1e-4, "prompt token": 8e-5, "key": 1e-6})


def noisy(steps, seed, slow=0.0):
    """Times whose ratio to the true mean is gamma-distributed with a deviation of 25%, and `slow` for 500 in a row."""
    random = np.random.default_rng(seed)
    ratios = random.gamma(16, 1 / 16, len(steps))
    ratios *= np.where(np.arange(len(steps)) // 500 % 2, 1 + slow, 1 - slow)
    return ratios, [float(ratio) * TRUE(step) for ratio, step in zip(ratios, steps, strict=True)]


def test_the_mean_is_found_among_steps_that_spread():
    """Errors relative to the measured times would give 6% less."""
    steps = some_steps(6000)
    _, seconds = noisy(steps, 1)
    found = fit(steps, seconds)
    bias = sum(map(found, steps)) / sum(map(TRUE, steps)) - 1
    assert abs(bias) < 0.01


def test_the_spread_of_steps_is_found_and_drawn_again():
    steps = some_steps(6000)
    ratios, seconds = noisy(steps, 2)
    cost = fit(steps, seconds)
    shares = [0.05, 0.5, 0.95]
    assert [cost.spread.quantile(share) for share in shares] == pytest.approx(np.quantile(ratios, shares), rel=0.02)
    draw = cost.sampled(3)
    drawn = np.array([draw(DECODE) for _ in range(6000)]) / TRUE(DECODE)
    assert drawn.mean() == pytest.approx(1, abs=0.03)
    assert drawn.std() == pytest.approx(0.25, rel=0.1)
    again, other = cost.sampled(3), cost.sampled(4)
    first = [again(DECODE) for _ in range(5)]
    assert first == pytest.approx((drawn[:5] * TRUE(DECODE)).tolist())
    assert [other(DECODE) for _ in range(5)] != first


def test_a_pause_is_neither_expected_nor_drawn():
    """One step of 6,000 took 50 times as long, as when the system stood still."""
    steps = some_steps(6000)
    _, seconds = noisy(steps, 1)
    usual = fit(steps, seconds)
    seconds[3000] *= 50
    paused = fit(steps, seconds)
    assert len(paused.spread.ratios) == 5999 and paused.spread.quantile(1) < 5
    assert sum(map(paused, steps)) == pytest.approx(sum(map(usual, steps)), rel=1e-3)


def test_slow_stretches_stay_together():
    """Means of 30 steps spread by 0.25; if each step were drawn by itself, they would spread by 0.4 / √30 = 0.07."""
    steps = some_steps(6000)
    _, seconds = noisy(steps, 5, slow=0.3)
    draw = fit(steps, seconds).sampled(1)
    means = np.array([draw(DECODE) for _ in range(6000)]).reshape(-1, 30).mean(axis=1) / TRUE(DECODE)
    assert 0.18 < means.std() < 0.32


def test_short_steps_spread_more_than_long_ones():
    """Both keep their own spread, and their own stretches: two of a kind in a row have the same ratio."""
    random = np.random.default_rng(8)
    place = np.repeat(random.normal(size=1500), 4)
    expected = np.tile([1e-3, 1e-3, 9e-3, 9e-3], 1500)
    ratios = np.exp(np.where(expected < 5e-3, 0.3, 0.05) * place)
    draw = Spread(tuple(expected.tolist()), tuple(ratios.tolist())).draws(2)
    drawn = np.log([[draw(1e-3) / 1e-3, draw(9e-3) / 9e-3] for _ in range(4000)])
    assert drawn.std(axis=0) == pytest.approx([0.3, 0.05], rel=0.1)
    for of_kind in drawn.T:
        assert np.corrcoef(of_kind[:-1], of_kind[1:])[0, 1] == pytest.approx(0.5, abs=0.1)


def test_a_limit_at_the_mean_is_met_by_half_of_the_requests():
    """With the mean alone a request of 20 equal steps always meets a limit just above it, and never one just below."""
    arrivals = trace(poisson(0.1, seed=1), 200, uniform(1, 1), uniform(20, 20), seed=1)
    ratios, _ = noisy([DECODE] * 6000, 7)
    cost = FittedCost({"step": 1e-2}, Spread((1e-2,) * 6000, tuple(ratios.tolist())))

    def attained(cost, limit):
        clock = VirtualClock()
        engine = Engine(SimulatedExecutor(clock, cost), BlockManager(64, 4), CHUNKED, clock)
        return measure(replay(engine, arrivals).requests, SLO(tpot=limit)).attainment

    assert (attained(cost, 1.01e-2), attained(cost, 0.99e-2)) == (1.0, 0.0)
    shares = [np.mean([attained(cost.sampled(seed), limit) for seed in range(4)]) for limit in (1.01e-2, 0.99e-2)]
    deviation = 0.25 / np.sqrt(19)  # of a mean of 19 gaps
    normal = [NormalDist(1, deviation).cdf(limit) for limit in (1.01, 0.99)]
    assert shares == pytest.approx(normal, abs=0.06)
    with pytest.raises(ValueError, match="this cost has no spread"):
        TRUE.sampled(0)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


TRACE = trace(
    bursty(200, 2.0, seed=3), 24, lognormal(12, 0.7, 1, 40), uniform(1, 12), prefixes=2, prefix_length=8, seed=4
)
TALKS = conversations(bursty(20, 1.0, seed=3), 12, 3, 6, uniform(1, 5), uniform(1, 4), think=0.05, seed=5)


class TimedRunner(ModelRunner):
    """A real model whose steps take as long in virtual time as the simulated ones."""

    def __init__(self, model, blocks, block_size, clock, cost):
        super().__init__(model, blocks, block_size)
        self.time = SimulatedExecutor(clock, cost)

    def execute(self, batch):
        self.time.execute(batch)
        return super().execute(batch)


@pytest.mark.parametrize("arrivals", [TRACE, TALKS], ids=["trace", "conversations"])
@pytest.mark.parametrize("name", POLICIES)
def test_the_simulated_engine_makes_the_steps_of_the_real_one(name, arrivals):
    policy = replace(POLICIES[name], max_running=6, token_budget=32)
    cost = FittedCost({"step": 2e-3, "prompt token": 1e-4, "decoded token": 2e-4})
    steps, times = [], []
    for simulated in (True, False):
        clock, manager = VirtualClock(), BlockManager(24, 4)
        executor = SimulatedExecutor(clock, cost) if simulated else TimedRunner(
            small_model(torch.float32), 24, 4, clock, cost)  # fmt: skip
        done = replay(Engine(executor, manager, policy, clock), arrivals, vocabulary=31)
        steps.append([(step.start, step.end, step.shape, step.requests) for step in done.steps])
        times.append([request.token_times for request in done.requests])
        assert not done.refused and manager.free == 24
    assert steps[0] == steps[1] and times[0] == times[1]
    assert len(steps[0]) > 5


def test_a_simulation_repeats_exactly():
    def once():
        clock = VirtualClock()
        engine = Engine(SimulatedExecutor(clock, RooflineCost(SMALL, H100)), BlockManager(64, 4), CHUNKED, clock)
        return [request.token_times for request in replay(engine, TRACE).requests]

    assert once() == once()
