"""Lab 18: the numbers of its prose, and that its small simulators agree with the course's fleet."""

import functools
import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lab_source import execute, load
from threeloops.models.gpt_config import GPTConfig
from threeloops.product import fleet


@functools.cache
def lab():
    """What the setup cells and the reference answers define."""
    source, names = load("18_serving_fleet"), {"__name__": "__main__"}
    execute(source.setup, "<lab 18 setup>", names)
    for exercise, text in source.solutions.items():
        execute(text, f"<lab 18 {exercise}>", names)
    return names


@functools.cache
def day(service, *settings, seed=1, **changes):
    names = lab()
    found = names["replace"](names["SERVICES"][service], **changes)
    return names["run_day"](found, names["Settings"](*settings), names["demand"](names["SERVICES"][service], seed))


def test_the_worked_example_of_the_rule():
    loads = [30, 26, 40, 24]
    assert lab()["desired"](loads, 20, 0.1, (1, 50)) == 6
    assert lab()["desired"]([*loads, None, None], 20, 0.1, (1, 50)) == 6
    assert [math.ceil(6 * 1.5), math.ceil(9 * 1.5)] == [9, 14]


@given(st.lists(st.one_of(st.integers(0, 60), st.none()), min_size=1, max_size=12), st.integers(3, 40))
def test_the_rule_is_that_of_the_course(metrics, target):
    """Without windows and rates. If the others are exactly on target, Kubernetes counts silent ones as idle."""
    known = [metric for metric in metrics if metric is not None]
    assume(not known or sum(known) != target * len(known))
    at_once = fleet.ScalingRules(0, ())
    scaler = fleet.Autoscaler(target=target, minimum=1, maximum=50, up=at_once, down=at_once)
    decision = scaler.decide(0.0, fleet.State(len(metrics), tuple(metrics)))
    assert decision.desired == lab()["desired"](metrics, target, 0.1, (1, 50)), decision.reason


def test_the_worked_example_of_the_window():
    wanted = [(250, 9), (330, 6), (450, 4), (600, 3)]
    assert lab()["settle"](wanted, 600, 9, 300) == 6


def test_a_window_helps_only_if_it_is_longer_than_the_pauses():
    short, usual, long_ = (day(1, "in_flight", 12, window) for window in (0, 300, 600))
    assert usual.started > 0.7 * short.started > 100 * long_.started
    assert usual.cost > short.cost > long_.cost
    assert usual.in_time < short.in_time + 0.06 < long_.in_time == 1


def test_the_waves_of_the_agents_are_two_to_eight_minutes_apart():
    names = lab()
    agents, chat = names["SERVICES"][1], names["SERVICES"][0]
    rates = names["demand"](agents, 1)
    normal = names["demand"](names["replace"](agents, factor=1.0), 1)
    wave = [rate > 1.01 / agents.factor * most for rate, most in zip(rates, normal, strict=True)]
    runs = [(inside, len(list(run)) * names["TICK"]) for inside, run in itertools.groupby(wave)]
    pauses = [seconds for inside, seconds in runs[1:-1] if not inside]
    assert 120 <= min(pauses) < 180 and 420 < max(pauses) <= 500
    assert max(rates) == pytest.approx(agents.peak, rel=0.01) and min(rates) == pytest.approx(agents.peak / 30)
    assert max(names["demand"](chat, 1)) <= chat.peak


def test_what_the_settings_of_the_model_answer_cost():
    names = lab()
    for service in names["SERVICES"]:
        settings = names["choose_settings"](service)
        run = names["run_day"](service, settings, names["demand"](service, 1))
        exact = next(
            text for text in load("18_serving_fleet").tests["choose_settings"] if f'"{service.name}", 1' in text
        )
        assert f'"{service.name}", 1, model={run.cost:.2f})' in exact


def test_a_cold_start_decides_what_a_target_is_worth():
    assert [round(day(0, "in_flight", 12, cold_start=seconds).in_time, 3) for seconds in (15, 240, 480)] == [
        1.0,
        0.963,
        0.909,
    ]
    assert round(day(0, "in_flight", 12).cost, 1) == 1.7


def test_the_longest_wait_of_the_worked_example():
    """Step by step: 40 come and 20 leave per second for a minute, then 80 leave."""
    waits = []
    for at in range(61):
        queue, left = 20 * at, 60 - at
        waits.append(queue / 20 if queue <= 20 * left else left + (queue - 20 * left) / 80)
    assert max(waits) == waits[30] == 30
    assert waits[45] == 22.5
    assert lab()["target_for"](16, 10, 40, 60, 30.01) == 8


def test_a_liveness_probe_alone_restarts_at_second_50():
    names = lab()
    probes = names["Probes"](names["Probe"]("/health", 10, 1, 3, delay=30), names["Probe"]("/ready", 10, 1, 3))
    events = names["kubelet"](probes, lambda path, age, now: 1 if age >= 60 else math.inf, 3600)
    assert events[:2] == [(50, "restart"), (101, "restart")]
    assert len(events) == 70


@pytest.mark.parametrize("loading", [40, 120, 290])
def test_both_kubelets_agree(loading):
    """The lab's, second by second, and the course's: when a replica is ready, and that a startup probe saves it."""
    names = lab()
    mine = names["Probes"](
        names["Probe"]("/health", 10, 1, 3), names["Probe"]("/ready", 5, 1, 3), names["Probe"]("/health", 5, 1, 60)
    )
    events = names["kubelet"](mine, lambda path, age, now: 0 if age >= loading else math.inf, 600)
    course = fleet.Probes(
        startup=fleet.Probe("/health", period=5, timeout=1, failure_threshold=60),
        readiness=fleet.Probe("/ready", period=5, timeout=1, failure_threshold=3),
        liveness=fleet.Probe("/health", period=10, timeout=1, failure_threshold=3),
    )
    ready = next(
        each
        for each in fleet.probe_timeline(course, lambda path, age: 0.0 if age >= loading else math.inf, 600)
        if each.what == "ready"
    )
    assert [what for _, what in events] == ["ready"]
    assert abs(events[0][0] - ready.at) <= 5


def test_retries_without_a_budget_never_end():
    storm = lab()["storm"]
    _, lost = storm(lambda failure, attempt, budget, draw: 0.5 * draw if attempt < 3 else None)
    assert sum(lost[40:115]) == 0
    attempts, answered = storm(lab()["retry_delay"])
    assert sum(answered[80:115]) == 350
    assert sum(attempts[20:80]) / 600 == pytest.approx(1.11, abs=0.005)
    _, calm = storm(lambda *_: None)
    assert calm.index(10, 31) < answered.index(10, 31)


def test_the_worked_example_of_the_cost():
    attempts = [("a", 400, True), ("b", 300, False), ("b", 500, True), ("c", 200, False)]
    assert lab()["cost_per_million"]([(0, 2), (600, 3), (3000, 1)], 3600, attempts, 2.5) == pytest.approx(6944, abs=1)
    assert pytest.approx(fleet.cost_per_million(9000, 900, 2.5)) == 6.25 / 900 * 1e6


def test_no_pair_of_target_and_window_serves_all_three():
    names = lab()
    for share in (0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0):
        for window in (300, 600):
            runs = [day(n, "in_flight", share * each.seats, window) for n, each in enumerate(names["SERVICES"])]
            fits = [
                run.in_time >= 0.99 and run.cost <= each.cost for run, each in zip(runs, names["SERVICES"], strict=True)
            ]
            assert not all(fits), (share, window)


def test_the_cpu_never_sees_the_load():
    per_cent = lab()["cpu_per_cent"]
    assert round(per_cent(0), 1) == 12.5
    assert round(per_cent(16 / 6), 1) == 12.8
    assert day(0, "cpu", 70, 300, 2).in_time < 0.05


def test_keys_and_values_of_a_prompt():
    llama = GPTConfig(128256, 32, 32, 8, 4096, 14336, 8192, tied_embeddings=False)
    per_token = 4 * llama.layers * llama.kv_heads * llama.head_dim
    assert per_token == 131_072
    assert 4000 * per_token / 50e9 == pytest.approx(0.0105, rel=0.01)
    assert 4000 * per_token / 1.25e9 == pytest.approx(0.42, rel=0.01)
    assert 4500 * per_token / 12.5e9 == pytest.approx(48e-3, rel=0.02)
    assert 4500 * per_token / 12.5e9 / 100 == pytest.approx(0.5e-3, rel=0.06)
    assert 22 * 4500 * per_token == pytest.approx(13e9, rel=0.01)
