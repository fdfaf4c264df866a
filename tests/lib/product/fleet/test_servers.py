"""The two models of an engine: exact steps, and a formula that agrees with them."""

import math
from dataclasses import replace

import pytest
from fleets import STEADY
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.hardware import accelerator
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import CHUNKED, DYNAMIC, RooflineCost, StepShape
from threeloops.product.fleet import EngineModel, Fleet, SharedModel, bursty_day, shared_model, simulate
from threeloops.product.loadgen import lognormal, uniform
from threeloops.product.request import Request, Sampling

LLAMA_8B = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
COST = RooflineCost(LLAMA_8B, accelerator("H100"), reached=0.7, overhead=2e-3)
SEATS = 16
ENGINE = EngineModel(COST, replace(CHUNKED, max_running=SEATS))


def request(name: str, prompt: int = 10, output: int = 100) -> Request:
    return Request(name, (0,) * prompt, Sampling(max_tokens=output))


def play(model, requests, until: float = math.inf):
    """Give requests as (moment, request), and take everything until the end."""
    server, ended = model(0.0), []
    for moment, each in requests:
        ended += server.advance(moment)
        server.add(moment, each)
    while server.next <= until and server.next < math.inf:
        ended += server.advance(server.next)
    return server, ended


def test_alone_a_request_takes_its_prompt_and_a_step_per_token():
    _, (done,) = play(STEADY, [(5.0, request("a"))])
    assert done.token_times == pytest.approx([5 + 0.01 + 0.01, 5 + 0.01 + 1.0])


def test_a_prompt_stops_the_others_and_a_joining_request_waits_for_half_a_step():
    _, ended = play(STEADY, [(0.0, request("a")), (0.5, request("b", prompt=100, output=10))])
    assert [each.id for each in ended] == ["b", "a"]
    b, a = ended
    assert b.token_times == pytest.approx([0.5 + 0.1 + 0.015, 0.5 + 0.1 + 0.105])
    assert a.token_times[-1] == pytest.approx(1.01 + 0.1)


def test_who_has_no_seat_waits():
    server = STEADY(0.0)
    for number in range(10):
        server.add(0.0, request(str(number), prompt=1, output=10))
    server.advance(0.05)
    assert server.waiting == 2
    ended = []
    while server.next < math.inf:
        ended += server.advance(server.next)
    assert len(ended) == 10 and server.waiting == 0


def test_one_token_is_the_first_and_the_last():
    _, (done,) = play(STEADY, [(0.0, request("a", output=1))])
    assert done.token_times == pytest.approx([0.02])


@pytest.mark.parametrize("model", [STEADY, ENGINE])
@given(data=st.data())
@settings(max_examples=40)
def test_whoever_is_not_cancelled_is_answered_once_and_the_device_is_free_at_the_end(model, data):
    server, ended, here, now = model(0.0), [], [], 0.0
    for number in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.floats(0, 0.3))
        ended += server.advance(now)
        here = [each for each in here if each not in ended]
        if here and data.draw(st.booleans()):
            server.cancel(now, here.pop(data.draw(st.integers(0, len(here) - 1))))
        new = request(str(number), data.draw(st.integers(1, 60)), data.draw(st.integers(1, 30)))
        server.add(now, new)
        here.append(new)
    while server.next < math.inf:
        ended += server.advance(server.next)
    assert sorted(each.id for each in ended) == sorted({each.id for each in ended})
    assert {each.id for each in here} <= {each.id for each in ended}
    assert server.waiting == 0 and server.steps > 0 and server.busy > 0
    for each in ended:
        assert each.token_times == sorted(each.token_times)


def test_a_batch_whose_door_opens_by_time_begins_by_itself():
    policy = replace(DYNAMIC, max_running=8, door_opens=0.5)
    _, (done,) = play(EngineModel(COST, policy), [(0.0, request("a", output=2))])
    assert 0.5 < done.token_times[0] < 0.6


@pytest.mark.parametrize("load", [0.3, 0.7, 0.95, 1.3])
def test_both_models_agree_below_and_above_capacity(load):
    """The same fleet and trace: latencies within a few per cent, though one of them makes every step."""
    prompt, output = 200, 60
    shared = shared_model(COST, SEATS, prompt, output)
    peak = load * 2 * shared.requests_per_second(prompt, output)
    day = bursty_day(peak, trough=0.8, bursts=1, height=1.05, seconds=12, seed=3)
    arrivals = day.arrivals(lognormal(180, 0.5, 20, 600), uniform(20, 100), seed=7)
    exact, fast = (simulate(arrivals, Fleet(model, 2)) for model in (ENGINE, shared))
    assert len(exact.answered) == len(fast.answered) == len(arrivals)
    assert fast.end_to_end.p50 == pytest.approx(exact.end_to_end.p50, rel=0.1)
    assert fast.end_to_end.p99 == pytest.approx(exact.end_to_end.p99, rel=0.1)
    assert fast.ttft.mean == pytest.approx(exact.ttft.mean, rel=0.25 if load > 0.9 else 0.1)
    assert fast.busy_seconds == pytest.approx(exact.busy_seconds, rel=0.05)


LONG_PROMPTS = ((8000, 50, 58), (2000, 100, 222), (800, 250, 256), (200, 60, 64))
FULL = RooflineCost(LLAMA_8B, accelerator("H100"), "bf16", 2, 0.6)


@pytest.mark.parametrize(("prompt", "output", "seats"), LONG_PROMPTS)
def test_no_capacity_exceeds_the_arithmetic_of_its_requests(prompt, output, seats):
    """A prompt costs arithmetic even if the step that it joins waits for memory."""
    flops = FULL.work(StepShape(((0, prompt, False),))).flops
    flops += sum(FULL.work(StepShape(((prompt + token, 1, True),))).flops for token in range(output))
    for some in (1, seats // 2, seats):
        whole = shared_model(FULL, seats, prompt, output)
        model = SharedModel(whole.step_seconds[:some], whole.prompt_seconds)
        assert model.requests_per_second(prompt, output) * flops <= 0.6 * accelerator("H100").rate("bf16")


@pytest.mark.parametrize(("prompt", "output", "seats"), LONG_PROMPTS)
def test_capacity_is_that_of_the_exact_engine(prompt, output, seats):
    """More requests wait than the engine can seat, with answers of different lengths, so that they do not keep step. It
    makes every step, and ends as many requests per second."""
    capacity = shared_model(FULL, seats, prompt, output).requests_per_second(prompt, output)
    policy = replace(CHUNKED, max_running=seats, prefix_cache=False)
    blocks = seats * (-(-(prompt + 2 * output) // 16) + 1)
    outputs = [output // 2 + number * 37 % output for number in range(8 * seats)]
    waiting = [(0.0, request(str(number), prompt, tokens)) for number, tokens in enumerate(outputs)]
    _, ended = play(EngineModel(FULL, policy, blocks=blocks), waiting)
    ends = sorted(done.token_times[-1] for done in ended)
    assert 4 * seats / (ends[6 * seats - 1] - ends[2 * seats - 1]) == pytest.approx(capacity, rel=0.1)


def test_capacity_is_what_the_table_says():
    assert STEADY.tokens_per_second(8) == pytest.approx(800)
    assert STEADY.requests_per_second(10, 100) == pytest.approx(1 / (0.01 + 100 / 800))


@pytest.mark.parametrize(("steps", "prompt"), [((), 0.1), ((0.0,), 0.1), ((1.0,), -1), ((1.0,), math.inf)])
def test_a_table_of_no_times_is_refused(steps, prompt):
    with pytest.raises(ValueError, match="step_seconds of"):
        SharedModel(steps, prompt)
