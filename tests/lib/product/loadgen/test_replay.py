"""Replays in virtual time, where every moment can be worked out, and the metrics of what they recorded."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.batching import CHUNKED, DYNAMIC, Engine, SimulatedExecutor
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.loadgen import (
    SLO,
    Arrival,
    highest_rate,
    lognormal,
    measure,
    poisson,
    replay,
    replaying,
    trace,
    uniform,
)
from threeloops.product.request import Finish, Request
from threeloops.simulation.clock import RealClock, VirtualClock


def engine_of(policy=CHUNKED, cost=lambda step: 1.0, blocks=1000, clock=None):
    clock = clock or VirtualClock()
    return Engine(SimulatedExecutor(clock, cost), BlockManager(blocks, 4), policy, clock)


def arrival(at, prompt=3, tokens=3, seed=0, **more):
    return Arrival(at, ((seed, prompt),), tokens, **more)


def test_latencies_count_from_the_intended_arrival_though_it_falls_into_a_step():
    done = replay(engine_of(), [arrival(0.0), arrival(0.25, seed=1, tokens=1)])
    first, second = done.requests
    assert first.token_times == [1.0, 2.0, 3.0] and second.token_times == [2.0] and second.arrival == 0.25
    found = measure(done.requests)
    assert found.ttft == (type(found.ttft)).of([1.0, 1.75])


def test_nothing_happens_between_arrivals():
    done = replay(engine_of(), [arrival(5.0, tokens=2), arrival(100.0, seed=1, tokens=1)])
    assert [(step.start, step.end, step.requests) for step in done.steps] == [
        (5.0, 6.0, ("0",)), (6.0, 7.0, ("0",)), (100.0, 101.0, ("1",)),
    ]  # fmt: skip
    assert done.steps[0].seconds == 1.0


def test_a_trace_begins_when_the_replay_does():
    engine = engine_of()
    engine.clock.sleep_until(50.0)
    done = replay(engine, [arrival(2.0, tokens=1)])
    assert done.start == 50.0 and done.requests[0].arrival == 52.0 and done.requests[0].token_times == [53.0]
    assert done.steps[0].start == 2.0


def test_a_batch_begins_when_its_door_opens_and_the_last_one_at_once():
    policy = replace(DYNAMIC, max_running=9, door_opens=3.0)
    done = replay(engine_of(policy), [arrival(0.0, tokens=1), arrival(20.0, seed=1, tokens=1)])
    assert [request.token_times for request in done.requests] == [[4.0], [21.0]]


def test_arrivals_in_any_order_are_replayed_in_time():
    done = replay(engine_of(), [arrival(9.0, tokens=1), arrival(1.0, seed=1, tokens=1)])
    assert [request.token_times for request in done.requests] == [[10.0], [2.0]]


def test_a_refused_request_is_reported_and_the_others_are_served():
    done = replay(
        engine_of(blocks=2), [arrival(0.0, tokens=1), arrival(0.0, prompt=30), arrival(1.0, seed=1, tokens=1)]
    )
    (refused,) = done.refused
    assert refused is done.requests[1] and "need a cache of 32 tokens" in refused.error
    found = measure(done.requests, SLO(ttft=5))
    assert (found.requests, found.completed) == (3, 2) and found.attainment == pytest.approx(2 / 3)


def test_on_the_real_clock_it_waits_for_arrivals():
    class Instant:
        def check(self, request):
            pass

        def execute(self, batch):
            return [(1,) if chunk.samples else () for chunk in batch.chunks]

    engine = Engine(Instant(), BlockManager(100, 4), CHUNKED, RealClock())
    done = replay(engine, [arrival(0.0), arrival(0.03, seed=1)])
    assert all(request.token_times[0] >= request.arrival for request in done.requests)
    assert done.requests[1].token_times[0] - done.start >= 0.03


def made(name, arrival, times, finish=Finish.LENGTH):
    request = Request(name, (1,), arrival=arrival)
    request.output, request.token_times, request.finish = [0] * len(times), times, finish
    return request


def test_metrics_are_those_of_the_definitions():
    requests = [made("a", 1.0, [2.0, 3.0, 5.0]), made("b", 2.0, [6.0]), made("c", 3.0, [3.5, 4.5, 5.5, 11.0])]
    found = measure(requests, SLO(ttft=2.0, tpot=2.0))
    assert found.seconds == 10.0 and found.output_tokens == 8 and found.throughput == 0.8
    assert found.ttft.mean == pytest.approx((1 + 4 + 0.5) / 3) and found.ttft.p50 == 1.0
    assert found.itl.mean == pytest.approx((1 + 2 + 1 + 1 + 5.5) / 5) and found.itl.p50 == 1.0
    assert found.tpot.mean == pytest.approx((1.5 + 2.5) / 2), "a single token has no gap"
    assert found.end_to_end.mean == pytest.approx((4 + 4 + 8) / 3)
    assert found.attainment == pytest.approx(1 / 3), "b's first token and c's others come too late"
    assert found.goodput == pytest.approx(0.1)
    assert found.in_system == pytest.approx((4 + 4 + 8) / 10) == pytest.approx(found.littles_law)


def test_percentiles_are_numpys():
    times = [float(n * n) for n in range(1, 30)]
    found = measure([made(str(n), 0.0, [time]) for n, time in enumerate(times)]).ttft
    assert (found.p50, found.p90, found.p99) == tuple(np.percentile(times, [50, 90, 99]))
    assert math.isnan(measure([made("a", 0.0, [1.0])]).itl.p50)


@pytest.mark.parametrize("finish", [Finish.CANCELLED, Finish.ERROR, None])
def test_who_did_not_finish_does_not_meet_an_slo_and_has_no_latency(finish):
    found = measure([made("a", 0.0, [1.0, 2.0]), made("b", 0.0, [1.0, 9.0], finish)], SLO(ttft=5, tpot=50))
    assert found.attainment == 0.5 and found.completed == 1 and found.end_to_end.mean == 2.0
    assert found.output_tokens == 4 and found.requests == 2


def test_nothing_completed_is_nothing_measured():
    with pytest.raises(ValueError, match="1 requests, of which none was completed"):
        measure([made("a", 0.0, [1.0], Finish.ERROR)])


@given(st.integers(0, 10_000), st.floats(0.5, 20.0))
def test_littles_law_holds(seed, rate):
    arrivals = trace(poisson(rate, seed), 30, lognormal(10, 1.0, 1, 80), uniform(1, 9), seed=seed)
    done = replay(engine_of(replace(CHUNKED, max_running=4), cost=lambda step: 0.01 * step.tokens), arrivals)
    found = measure(done.requests)
    assert found.in_system == pytest.approx(found.littles_law, rel=1e-9)


def test_little_by_counting_heads_at_random_moments():
    arrivals = trace(poisson(3, 1), 200, uniform(5, 50), uniform(1, 9), seed=2)
    requests = replay(engine_of(replace(CHUNKED, max_running=4), cost=lambda step: 0.05), arrivals).requests
    found, draw = measure(requests), random.Random(0)
    begin, end = requests[0].arrival, max(each.token_times[-1] for each in requests)
    moments = [draw.uniform(begin, end) for _ in range(4000)]
    heads = [sum(each.arrival <= moment < each.token_times[-1] for each in requests) for moment in moments]
    assert found.in_system == pytest.approx(sum(heads) / len(heads), rel=0.05)


def test_the_highest_rate_is_where_the_share_is_lost():
    asked = []

    def attainment(rate):
        asked.append(rate)
        return 1.0 if rate <= 37.3 else 0.5

    found = highest_rate(attainment, precision=0.001)
    assert 37.3 * 0.998 <= found <= 37.3 and len(asked) < 30
    assert highest_rate(lambda rate: 0.95 if rate <= 0.2 else 0.0, share=0.9) == pytest.approx(0.2, rel=0.02)


def test_a_limit_that_is_none_is_named():
    with pytest.raises(ValueError, match="is it a limit at all"):
        highest_rate(lambda rate: 1.0)
    with pytest.raises(ValueError, match="low = 2, high = 1"):
        highest_rate(lambda rate: 1.0, low=2, high=1)
    for wrong, said in (
        ({"ttft": 0}, "ttft = 0"),
        ({"tpot": -1}, "tpot = -1"),
        ({"share": 0}, "share = 0"),
        ({"share": 2}, "share = 2"),
    ):
        with pytest.raises(ValueError, match=said):
            SLO(**wrong)


def test_a_replay_that_takes_turns_is_what_it_is_alone():
    arrivals = [arrival(0.0), arrival(0.25, seed=1, tokens=5)]
    alone = replay(engine_of(), arrivals)
    one, other = replaying(engine_of(), arrivals), replaying(engine_of(), arrivals)
    so_far = [(len(done.steps), len(beside.steps)) for done, beside in zip(one, other, strict=True)]
    assert so_far == [(steps, steps) for steps in range(len(alone.steps) + 1)]
    *_, done = replaying(engine_of(), arrivals)
    assert [request.token_times for request in done.requests] == [request.token_times for request in alone.requests]
    assert [step.shape for step in done.steps] == [step.shape for step in alone.steps]
