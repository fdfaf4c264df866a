"""A day as a flow, against the simulation of every request, and against arithmetic."""

import pytest
from threeloops.product.fleet import Autoscaler, ColdStart, Demand, Fleet, SharedModel, bursty_day, flow, simulate
from threeloops.product.loadgen import uniform

MODEL = SharedModel(tuple(0.02 + 0.0005 * running for running in range(1, 65)), 1e-4)
PROMPT, OUTPUT = 101, 53


def test_replica_hours_are_those_of_the_simulation():
    """A little fewer, because chance makes a real autoscaler ask sooner and let go later."""
    day = bursty_day(40.0, seconds=600, bursts=2, seed=3)
    autoscaler = Autoscaler(target=20, minimum=1, maximum=20)
    found = flow(day, MODEL, PROMPT, OUTPUT, autoscaler, cold_start=30)
    arrivals = day.arrivals(uniform(PROMPT, PROMPT), uniform(OUTPUT, OUTPUT), seed=1)
    fleet = Fleet(MODEL, found.ready[0], autoscaler, cold_start=ColdStart(pull=30))
    run = simulate(arrivals, fleet, seconds=day.seconds)
    assert 0.85 <= found.replica_seconds / run.replica_seconds <= 1.02
    assert abs(max(found.ready) - max(run.columns()["ready"])) <= 2


def test_a_steady_demand_keeps_as_many_as_littles_law_says():
    rate = 100.0
    day = Demand((0.0, 3600.0), (rate, rate))
    found = flow(day, MODEL, PROMPT, OUTPUT, Autoscaler(target=30, maximum=50, tolerance=0.05))
    running = found.ready[-1]
    seconds = OUTPUT * MODEL.step_seconds[29] + 30 * PROMPT * MODEL.prompt_seconds  # of a request among 30
    assert running == pytest.approx(rate * seconds / 30, abs=1)
    assert not any(found.waiting) and not any(found.starting[10:])


def test_too_few_replicas_let_requests_wait():
    capacity = MODEL.requests_per_second(PROMPT, OUTPUT)
    day = Demand((0.0, 600.0), (3 * capacity, 3 * capacity))
    found = flow(day, MODEL, PROMPT, OUTPUT, Autoscaler(target=30, maximum=2), replicas=2)
    assert found.waiting[-1] == pytest.approx(600 * capacity)
    assert set(found.ready) == {2}


def test_replicas_come_after_their_cold_start_and_go_again():
    capacity = MODEL.requests_per_second(PROMPT, OUTPUT)
    day = Demand((0.0, 300.0, 301.0, 3000.0), (3 * capacity, 3 * capacity, 0.1, 0.1))
    found = flow(day, MODEL, PROMPT, OUTPUT, Autoscaler(target=40, maximum=9), cold_start=100, replicas=1)
    first = next(at for at, ready in zip(found.at, found.ready, strict=True) if ready > 1)
    assert 100 <= first <= 130 and found.starting[1] > 0
    assert found.ready[-1] == 1
    paid = sum(found.ready) + sum(found.starting)
    assert found.replica_seconds == paid * found.period
