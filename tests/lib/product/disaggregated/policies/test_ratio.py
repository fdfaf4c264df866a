"""How many machines of each kind: by flow balance, against simulated pools, and when a machine changes its role."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.batching import CHUNKED, StepShape
from threeloops.product.disaggregated import (
    CacheShape,
    Deployment,
    Handover,
    Link,
    Pool,
    PoolLoad,
    RoleChanges,
    Split,
    best_split,
    decode_batch,
    decode_rate,
    prefill_rate,
    simulate,
)
from threeloops.product.loadgen import SLO, Arrival


def cost(step) -> float:
    """10 ms a step, 1 ms a token, and 10 µs a key."""
    return 0.01 + 0.001 * step.tokens + 1e-5 * step.keys


def test_prompts_are_computed_one_after_another():
    assert prefill_rate(cost, 90) == pytest.approx(1 / (0.01 + 0.09 + 0.0009))
    assert prefill_rate(cost, 90, cached=80) == pytest.approx(1 / (0.01 + 0.01 + 0.0009))
    chunks = 3 * 0.01 + 0.09 + 1e-5 * (40 + 80 + 90)
    assert prefill_rate(cost, 90, chunk=40) == pytest.approx(1 / chunks)


def test_as_many_decode_as_the_limit_on_gaps_allows():
    """A request costs 1 ms and 1 ms for its 100 keys, so 20 of them make a step of 50 ms."""
    assert decode_batch(cost, 100, 0.05, seats=64, blocks=10_000) == 20
    assert decode_batch(cost, 100, 0.04999, seats=64, blocks=10_000) == 19
    assert decode_batch(cost, 100, 0.05, seats=8, blocks=10_000) == 8
    assert decode_batch(cost, 100, 0.05, seats=64, blocks=70) == 10, "each holds 7 blocks"
    assert decode_batch(cost, 100, 0.011, seats=64, blocks=10_000) == 0


def test_a_decode_machine_makes_all_tokens_but_the_first():
    assert decode_rate(cost, 90, 21, 0.05) == pytest.approx(20 / (0.05 * 20), rel=1e-9)
    assert decode_rate(cost, 90, 1, 0.05) == math.inf
    assert decode_rate(cost, 90, 20, 0.001) == 0.0


def test_the_ratio_is_the_inverse_of_the_rates():
    assert best_split(8, prefill=10.0, decode=30.0) == Split(6, 2, 60.0)
    assert best_split(8, prefill=30.0, decode=10.0) == Split(2, 6, 60.0)
    assert best_split(4, prefill=100.0, decode=1.0) == Split(1, 3, 3.0)
    assert best_split(2, 1.0, 1.0) == Split(1, 1, 1.0)
    assert best_split(3, 1.0, 1.0) == Split(1, 2, 1.0), "the same rate, and one machine more that decodes"


@given(machines=st.integers(2, 40), prefill=st.floats(0.1, 50), decode=st.floats(0.1, 50))
def test_the_best_split_is_next_to_the_exact_ratio(machines, prefill, decode):
    split = best_split(machines, prefill, decode)
    assert split.prefill + split.decode == machines and min(split.prefill, split.decode) >= 1
    exact = machines * decode / (prefill + decode)
    near = {min(max(number, 1), machines - 1) for number in (math.floor(exact), math.ceil(exact))}
    assert split.rate == pytest.approx(max(min(n * prefill, (machines - n) * decode) for n in near))


@pytest.mark.parametrize(("prompt", "output"), [(150, 11), (60, 61)])
def test_flow_balance_is_what_simulated_pools_reach(prompt, output):
    """At a rate above each pool's, the throughput is that of the pool, and the best split of four is the best here."""
    tpot, seats = 0.04, 16
    policy = replace(CHUNKED, token_budget=prompt, max_running=seats, prefix_cache=False)
    of_decode = decode_batch(cost, prompt + output // 2, tpot, seats, 4096)
    decodes = replace(policy, max_running=of_decode)
    handover = Handover(Link(0.0, 1e9), CacheShape(4, 25.0), "whole")

    def throughput(prefill, decode):
        pools = Pool(prefill, policy), Pool(decode, decodes)
        rate = 1.2 * min(prefill * rates[0], decode * rates[1])
        arrivals = [Arrival(n / rate, ((n, prompt),), output) for n in range(400)]
        done = simulate(arrivals, Deployment(cost, handover, *pools)).requests
        ends = sorted(request.token_times[-1] for request in done)
        return 200 / (ends[349] - ends[149])  # neither the filling nor the emptying

    rates = prefill_rate(cost, prompt), decode_rate(cost, prompt, output, tpot, seats=seats)
    measured = {number: throughput(number, 4 - number) for number in range(1, 4)}
    for number, rate in measured.items():
        balance = min(number * rates[0], (4 - number) * rates[1])
        assert rate == pytest.approx(balance, rel=0.05), number
    split = best_split(4, *rates)
    assert measured[split.prefill] >= 0.95 * max(measured.values())
    ends = SLO(tpot=tpot * 1.1)
    pools = Pool(split.prefill, policy), Pool(split.decode, decodes)
    calm = [Arrival(n / (0.8 * split.rate), ((n, prompt),), output) for n in range(100)]
    assert simulate(calm, Deployment(cost, handover, *pools)).metrics(ends).attainment == 1.0


RULE = RoleChanges(prefill=(0.1, 1.0), decode=(0.5, 0.9), pause=10.0)


@pytest.mark.parametrize(
    ("prefill", "decode", "since", "decision"),
    [
        ((2, 1.1), (2, 0.4), 99, "to prefill"),
        ((2, 1.0), (2, 0.4), 99, None),  # not above its mark
        ((2, 1.1), (2, 0.5), 99, None),  # the other is not below its own
        ((2, 1.1), (2, 0.4), 9.9, None),  # too soon
        ((2, 1.1), (1, 0.4), 99, None),  # the last machine stays
        ((2, 0.0), (2, 0.95), 99, "to decode"),
        ((2, 0.1), (2, 0.95), 99, None),
        ((1, 0.0), (2, 0.95), 99, None),
        ((2, 5.0), (2, 0.95), 99, None),  # both are overloaded: nobody has a machine to give
        ((2, 0.0), (2, 0.0), 99, None),
    ],
)
def test_a_machine_moves_from_the_idle_pool_to_the_overloaded_one(prefill, decode, since, decision):
    assert RULE.decide(PoolLoad(*prefill), PoolLoad(*decode), since) == decision


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: prefill_rate(cost, 10, cached=10), "cached = 10"),
        (lambda: best_split(1, 1.0, 1.0), "machines = 1"),
        (lambda: RoleChanges(prefill=(2.0, 1.0)), "a low and a high mark"),
        (lambda: RoleChanges(period=0), "period = 0"),
        (lambda: RoleChanges(keeps=0), "keeps = 0"),
    ],
)
def test_what_makes_no_sense_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_one_key_costs_what_the_step_says():
    assert cost(StepShape(((99, 1, True),) * 20)) == pytest.approx(0.05)
