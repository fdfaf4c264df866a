"""A fleet in virtual time: cold starts, failures, drains, retries and the autoscaler, each seen from outside."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fleets import STEADY, check_record, every
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.product.fleet import (
    Autoscaler,
    ColdStart,
    EngineModel,
    Failure,
    Fleet,
    Probe,
    Probes,
    Rate,
    Retries,
    ScalingRules,
    bursty_day,
    least_outstanding,
    prefix_aware,
    round_robin,
    simulate,
    two_choices,
)
from threeloops.product.loadgen import SLO, Arrival, uniform

CAREFUL = Probes(Probe("/ready", failure_threshold=60), Probe("/ready", period=5), Probe("/health"))
QUICK = ScalingRules(0, (Rate(100, "percent", 15), Rate(4, "replicas", 15)))


def test_a_fleet_that_is_large_enough_answers_as_one_replica_alone():
    run = simulate(every(0.5, 40), Fleet(STEADY, replicas=3))
    check_record(run, every(0.5, 40))
    assert {round(each.seconds, 6) for each in run.requests} == {1.01}
    assert run.ttft.p99 == pytest.approx(0.02) and not run.errors
    assert run.output_tokens == 4000 and run.replica_seconds == pytest.approx(3 * run.seconds)


def test_above_capacity_the_queue_grows_and_nobody_is_lost():
    arrivals = every(0.05, 400)
    run = simulate(arrivals, Fleet(STEADY, replicas=1))
    check_record(run, arrivals)
    assert run.requests[-1].seconds > 20 and max(each.waiting for each in run.samples) > 100
    assert 400 / run.seconds == pytest.approx(STEADY.requests_per_second(10, 100), rel=0.15)


def test_a_new_replica_is_paid_from_the_moment_at_which_it_is_asked_for_and_takes_requests_when_it_is_ready():
    autoscaler = Autoscaler(target=4, minimum=1, maximum=2)
    fleet = Fleet(STEADY, 1, autoscaler, cold_start=ColdStart(pull=20, load=30, warm_up=7), probes=CAREFUL)
    run = simulate(every(0.1, 1500), fleet)
    check_record(run, every(0.1, 1500))
    second = run.lives[1]
    assert second.asked == 15
    assert second.ready == 15 + 20 + 40, "loaded 37 s after it began, and the startup probe asks every 10"
    assert [event.what for event in second.events] == ["runs", "started", "ready"]
    assert min(each.first_token for each in run.requests if each.replica == "replica-1") >= second.ready
    assert run.replica_seconds == pytest.approx(run.seconds + run.seconds - 15)


def test_a_spread_of_cold_starts_is_drawn_from_the_seed():
    fleet = Fleet(STEADY, 1, Autoscaler(1, 8, 8), cold_start=ColdStart(load=60, spread=0.5), probes=CAREFUL)
    runs = [simulate(every(1, 300), fleet, seed=seed) for seed in (1, 1, 2)]
    ready = [[life.ready for life in run.lives] for run in runs]
    assert ready[0] == ready[1] != ready[2] and len(set(ready[0])) > 3


def test_the_same_arguments_give_the_same_run():
    arrivals = bursty_day(12, seconds=300, seed=1).arrivals(uniform(5, 30), uniform(20, 90), seed=2)
    fleet = Fleet(
        STEADY, 2, Autoscaler(5, maximum=5), cold_start=ColdStart(5, 10, 2, 0.3), probes=CAREFUL, router=two_choices,
        failures=(Failure(70), Failure(150, "hang"), Failure(200, "node")),
    )  # fmt: skip
    one, other = (repr(simulate(arrivals, fleet, seed=4)) for _ in range(2))
    assert one == other  # as text, in which a time that never came (NaN) equals itself


def test_without_stabilisation_it_turns_more_often_and_a_cold_start_costs_the_slo():
    """svc-3: both are simulated, on one bursty day of 20 minutes."""
    arrivals = bursty_day(14, seconds=1200, bursts=2, height=2.5, seed=1).arrivals(
        uniform(5, 15), uniform(60, 140), seed=2
    )
    calm = Autoscaler(target=5, minimum=1, maximum=8)
    nervous = replace(calm, down=QUICK)
    cold = ColdStart(pull=30, load=75, warm_up=15)
    runs = {
        name: simulate(arrivals, Fleet(STEADY, 2, autoscaler, cold_start=start, probes=CAREFUL))
        for name, autoscaler, start in (
            ("warm", calm, ColdStart()), ("cold", calm, cold), ("nervous", nervous, cold)
        )
    }  # fmt: skip
    for run in runs.values():
        check_record(run, arrivals)
    slo = SLO(ttft=0.5)
    attained = {name: run.attainment(slo) for name, run in runs.items()}
    assert attained["warm"] > attained["cold"] > attained["nervous"]
    assert runs["nervous"].reversals > 2 * runs["cold"].reversals
    assert runs["nervous"].replica_seconds < runs["cold"].replica_seconds, "what is saved"


def test_cpu_says_nothing_of_the_load_of_the_device():
    """svc-2: a host works per step, and full steps are not more frequent than empty ones, so CPU stays below 70%."""
    arrivals = every(0.05, 3000)
    cpu = Fleet(STEADY, 1, Autoscaler(target=0.7, maximum=8), metric="cpu")
    queue = replace(cpu, metric="outstanding", autoscaler=Autoscaler(target=6, maximum=8))
    on_cpu, on_queue = simulate(arrivals, cpu), simulate(arrivals, queue)
    assert max(life.restarts for life in on_cpu.lives) == 0 and len(on_cpu.lives) == 1
    assert all(each.metric < 0.1 for each in on_cpu.samples)
    assert on_cpu.attainment(SLO(ttft=1)) < 0.1 < 0.8 < on_queue.attainment(SLO(ttft=1))


def test_the_share_of_busy_time_is_full_long_before_the_replica_is():
    run = simulate(every(0.5, 200), Fleet(STEADY, 1, metric="busy"))
    assert np.mean([each.metric for each in run.samples[1:-1]]) > 0.95
    assert np.mean([each.running for each in run.samples[1:-1]]) < 3


def test_behind_a_liveness_probe_alone_a_slow_model_never_comes_up():
    """svc-4: the same model, with one /health for all and with a startup probe."""
    slow = ColdStart(load=140, answers_health=False)
    alone = Probes(readiness=Probe("/health"), liveness=Probe("/health", initial_delay=30))
    fleet = Fleet(STEADY, 1, Autoscaler(target=4, minimum=1, maximum=2), cold_start=slow, probes=alone)
    arrivals = every(0.1, 6000)
    bad, good = simulate(arrivals, fleet), simulate(arrivals, replace(fleet, probes=CAREFUL))
    assert math.isnan(bad.lives[1].ready) and bad.lives[1].restarts >= 5
    assert good.lives[1].ready == 15 + 140 and good.lives[1].restarts == 0
    assert good.attainment(SLO(ttft=2)) > bad.attainment(SLO(ttft=2)) + 0.3


def test_without_a_readiness_probe_requests_are_refused_while_the_model_loads():
    fleet = Fleet(STEADY, 1, Autoscaler(4, 2, 2), cold_start=ColdStart(load=60), probes=Probes(), router=round_robin)
    run = simulate(every(0.3, 300), fleet)
    check_record(run, every(0.3, 300))
    assert run.refused > 3 and not run.errors, "the router goes on to the other one, as nothing was sent"
    assert simulate(every(0.3, 300), replace(fleet, probes=CAREFUL)).refused == 0


def test_a_crash_breaks_off_what_is_there_and_retries_answer_it():
    arrivals = every(0.2, 300)
    fleet = Fleet(STEADY, 2, cold_start=ColdStart(load=20), probes=CAREFUL, failures=(Failure(20.05),))
    run = simulate(arrivals, fleet)
    check_record(run, arrivals)
    again = [each for each in run.requests if each.tries == 2]
    assert run.retries == len(again) >= 2 and not run.errors
    assert all(each.replica == "replica-1" and 19 < each.arrival < 20.05 for each in again)
    assert run.lives[0].restarts == 1
    assert [(event.at, event.what) for event in run.lives[0].events] == [
        (20.05, "unready"), (20.05, "exited"), (20.05, "runs"), (40.05, "started"), (40.05, "ready"),
    ]  # fmt: skip


def test_without_retries_a_crash_is_an_error_that_says_so():
    run = simulate(every(0.2, 300), Fleet(STEADY, 2, retries=Retries(tries=1), failures=(Failure(20.05),)))
    check_record(run, every(0.2, 300))
    (error,) = run.errors
    assert error == "replica-0 broke off: its process was killed, in try 1 of 1"


def test_a_stream_that_has_begun_is_not_tried_again():
    fleet = Fleet(STEADY, 2, streaming=True, failures=(Failure(20.05),))
    run = simulate(every(0.2, 300), fleet)
    check_record(run, every(0.2, 300))
    assert run.errors and all(error.endswith("after the first token") for error in run.errors)
    assert sum(simulate(every(0.2, 300), replace(fleet, streaming=False)).errors.values()) == 0


def test_the_budget_bounds_retries_where_every_replica_fails_again_and_again():
    """A retry storm: without a budget each request comes back as often as it may."""
    arrivals = every(0.05, 600)
    failures = tuple(Failure(at, "crash", at) for at in range(1, 40))
    probes = Probes(readiness=Probe("/ready", period=1))
    fleet = Fleet(STEADY, 3, failures=failures, cold_start=ColdStart(load=2), probes=probes)
    bounded = simulate(arrivals, replace(fleet, retries=Retries(tries=10, share=0.1, reserve=5)))
    storm = simulate(arrivals, replace(fleet, retries=Retries(tries=10, share=10, reserve=1e9)))
    check_record(bounded, arrivals)
    check_record(storm, arrivals)
    assert bounded.retries <= 5 + 0.1 * 600 < storm.retries
    assert any("budget" in error for error in bounded.errors)


def test_a_replica_that_hangs_is_found_by_its_liveness_probe_and_never_without_one():
    arrivals = every(0.2, 400)
    hang = (Failure(20.05, "hang"),)
    fleet = Fleet(STEADY, 2, probes=CAREFUL, cold_start=ColdStart(load=10), failures=hang, timeout=200)
    run = simulate(arrivals, fleet)
    check_record(run, arrivals)
    events = {event.what: event.at for event in run.lives[0].events}
    assert events["unready"] == 35 and events["killed"] == 50, "three probes, every 5 and every 10 s"
    without = simulate(arrivals, replace(fleet, probes=replace(CAREFUL, liveness=None)))
    check_record(without, arrivals)
    assert without.lives[0].restarts == 0 and math.isnan(without.lives[0].gone)
    assert max(each.seconds for each in without.requests) > 200, "they waited until their try was given up"


def test_a_lost_node_is_replaced_at_once_and_no_longer_paid_for():
    run = simulate(every(0.2, 300), Fleet(STEADY, 2, cold_start=ColdStart(10, 10), failures=(Failure(20.05, "node"),)))
    check_record(run, every(0.2, 300))
    assert run.lives[0].gone == 20.05 and run.lives[2].asked == 20.05 and len(run.lives) == 3


def test_a_replica_that_drains_ends_its_requests_and_takes_no_new_ones():
    down = Autoscaler(target=50, minimum=1, down=ScalingRules(10))
    arrivals = [Arrival(14.9, ((number, 1),), 2000) for number in range(4)] + every(0.5, 60)
    run = simulate(arrivals, Fleet(STEADY, 2, down, drain=60))
    check_record(run, arrivals)
    drained = next(life for life in run.lives if not math.isnan(life.drains))
    last = max(each.end for each in run.requests if each.replica == drained.replica)
    assert drained.gone == last > drained.drains and not run.errors
    assert all(each.arrival <= drained.drains for each in run.requests if each.replica == drained.replica)


def test_what_is_not_ended_when_the_time_to_drain_is_over_is_broken_off_with_that_reason():
    arrivals = [Arrival(0.0, ((number, 1),), 4000) for number in range(2)]
    fleet = Fleet(STEADY, 2, Autoscaler(50, minimum=1, down=ScalingRules(10)), drain=5, retries=Retries(tries=1))
    run = simulate(arrivals, fleet)
    (error,) = run.errors
    assert "the time to drain was over" in error and run.errors[error] == 1
    assert simulate(arrivals, replace(fleet, retries=Retries())).errors == {}


def test_what_is_given_to_a_fleet_of_zero_waits_for_the_first_replica():
    fleet = Fleet(STEADY, 0, Autoscaler(4, minimum=0, cooldown=60), cold_start=ColdStart(5, 20), probes=CAREFUL)
    run = simulate([*every(0.5, 8, start=20), *every(0.5, 8, start=400)], fleet, seconds=700)
    check_record(run, [*every(0.5, 8, start=20), *every(0.5, 8, start=400)])
    first = run.lives[0]
    assert first.asked == 30 and first.ready == 30 + 5 + 20
    assert run.requests[0].first_token == pytest.approx(first.ready + 0.02, abs=0.1) and not run.errors
    assert 90 < first.gone < 130 and len(run.lives) == 2, "the second one is for the second burst"
    assert [each.ready for each in run.samples if 200 < each.at < 400] == [0] * 13


def test_who_waits_for_a_replica_too_long_gets_an_error():
    fleet = Fleet(STEADY, 0, Autoscaler(4, minimum=0), cold_start=ColdStart(load=500), probes=CAREFUL, timeout=30)
    run = simulate(every(1, 5), fleet)
    assert run.errors == {"no replica was ready in time": 5}
    assert {each.seconds for each in run.requests} == {30}


def test_a_request_that_no_replica_can_run_is_refused_and_the_others_go_on():
    model = EngineModel(lambda step: 0.01, blocks=8, block_size=4)
    arrivals = [*every(0.1, 5, prompt=4, output=4), Arrival(0.25, ((9, 100),), 4)]
    run = simulate(arrivals, Fleet(model, 1))
    check_record(run, arrivals)
    ((error, count),) = run.errors.items()
    assert count == 1 and error.startswith("refused: ") and "shorten the prompt" in error


def test_with_prefixes_at_home_more_of_the_prompts_are_in_the_cache():
    """The course's engines, each with a cache for a few of the sixteen prefixes that are in use."""
    model = EngineModel(lambda step: 1e-3 + 1e-4 * step.tokens, blocks=160, block_size=16)
    day = bursty_day(10, trough=1, bursts=0, seconds=60)
    arrivals = day.arrivals(uniform(8, 16), uniform(4, 8), prefixes=16, prefix_length=256, seed=1)
    ttft = {
        name: simulate(arrivals, Fleet(model, 4, router=router)).ttft.mean
        for name, router in (("home", prefix_aware(2.0)), ("anywhere", least_outstanding))
    }
    assert ttft["home"] < 0.6 * ttft["anywhere"]


def test_least_outstanding_is_better_than_round_robin_where_lengths_differ():
    arrivals = bursty_day(22, trough=1, bursts=0, seconds=120).arrivals(
        uniform(1, 5), lambda random: 10 if random.random() < 0.9 else 800, seed=3
    )
    p99 = {
        router.__name__: simulate(arrivals, Fleet(STEADY, 3, router=router)).ttft.p99
        for router in (round_robin, least_outstanding, two_choices)
    }
    assert 2 * max(p99["least_outstanding"], p99["two_choices"]) < p99["round_robin"]


KINDS = st.builds(Failure, st.floats(0, 60), st.sampled_from(["crash", "hang", "node"]), st.integers(0, 5))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    failures=st.lists(KINDS, max_size=6),
    replicas=st.integers(0, 4),
    bounds=st.tuples(st.integers(0, 2), st.integers(1, 5)),
    cold=st.builds(ColdStart, st.floats(0, 10), st.floats(0, 20), spread=st.sampled_from([0, 0.5])),
    probes=st.sampled_from([Probes(), CAREFUL, Probes(liveness=Probe(period=5)), Probes(readiness=Probe("/ready"))]),
    retries=st.builds(Retries, st.integers(1, 4), st.floats(0, 1), st.floats(0, 20), st.floats(0, 1)),
    limits=st.tuples(st.floats(2, 60), st.floats(0.5, 30)),
    streaming=st.booleans(),
    exact=st.booleans(),
    router=st.sampled_from([round_robin, least_outstanding, two_choices, prefix_aware()]),
)
def test_whatever_happens_no_request_is_lost_without_an_error_and_none_is_answered_twice(
    seed, failures, replicas, bounds, cold, probes, retries, limits, streaming, exact, router
):
    least, most = min(bounds), max(bounds)
    down = ScalingRules(15)
    fleet = Fleet(
        EngineModel(lambda step: 0.02, blocks=64, block_size=16) if exact else STEADY, replicas,
        Autoscaler(4, least, most, down=down, cooldown=20), router=router, probes=probes, cold_start=cold,
        retries=retries, failures=tuple(failures), period=5, timeout=limits[0], drain=limits[1], streaming=streaming,
    )  # fmt: skip
    day = bursty_day(6, seconds=60, bursts=2, height=3, seed=seed)
    arrivals = day.arrivals(uniform(1, 40), uniform(1, 80), prefixes=3, prefix_length=32, seed=seed)
    run = simulate(arrivals, fleet, seed=seed)
    check_record(run, arrivals)
    assert run.retries <= retries.reserve + retries.share * len(arrivals)
    assert all(each.tries <= retries.tries for each in run.requests)
    assert all(least <= each.desired <= max(most, replicas) for each in run.samples)


def test_a_run_can_be_drawn():
    arrivals = bursty_day(12, seconds=900, seed=1).arrivals(uniform(5, 30), uniform(20, 90), seed=2)
    fleet = Fleet(STEADY, 2, Autoscaler(5, maximum=5), cold_start=ColdStart(5, 10), probes=CAREFUL)
    run = simulate(arrivals, fleet, seconds=900)
    columns = run.columns()
    assert {len(column) for column in columns.values()} == {len(run.samples)} and len(run.samples) >= 60
    assert columns["demand"][1:].sum() * 15 == pytest.approx(len(arrivals), abs=30)
    assert (columns["ready"] >= 1).all() and columns["starting"].max() >= 1
    moments, p95 = run.p95(60)
    assert len(moments) == len(p95) == 16 and np.nanmin(p95) > 0.02
    slowest = max((each for each in run.answered if 120 <= each.arrival < 180), key=lambda each: each.ttft)
    assert p95[2] <= slowest.ttft
    assert all(each.reason for each in run.samples) and run.changes[0].desired != run.samples[0].desired


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Fleet(STEADY, 0), "replicas = 0"),
        (lambda: Fleet(STEADY, metric="gpu"), "metric = 'gpu'"),
        (lambda: Fleet(STEADY, timeout=0), "timeout = 0"),
        (lambda: ColdStart(load=-1), "load = -1"),
        (lambda: Retries(tries=0), "tries=0"),
        (lambda: Failure(1, "fire"), "'fire'"),
        (lambda: Failure(-1), "at=-1"),
    ],
)
def test_settings_out_of_range_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()
