"""Lab 19: the numbers of its prose, and that what it asks for agrees with the course's simulators."""

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_source import execute, load
from threeloops.training.elastic.goodput import Job, simulate
from threeloops.training.planning import LLAMA_8B, LLAMA_70B, LLAMA_405B, a100_node, h100_node, step_time

DAY = 86400


@functools.cache
def lab():
    """What the setup cells and the reference answers define."""
    source, names = load("19_capstone_plan"), {"__name__": "__main__"}
    execute(source.setup, "<lab 19 setup>", names)
    for exercise, text in source.solutions.items():
        execute(text, f"<lab 19 {exercise}>", names)
    return names


def test_two_published_runs_took_13_to_17_per_cent_more_than_the_formula():
    bloom = lab()["gpu_hours"](176e9, 366e9, 150e12, True)
    llama = lab()["gpu_hours"](405e9, 15.6e12, 400e12, False)
    assert round(bloom, -3) == 954_000
    assert [round(100 * (hours / formula - 1)) for hours, formula in ((1_082_990, bloom), (30.84e6, llama))] == [13, 17]


def test_the_worked_example_of_the_schedule():
    interval, days = lab()["schedule"](30 * DAY, 1000, 3 * 365 * DAY, 60, 600)
    assert round(3 * 365 * 24 / 1000, 1) == 26.3
    assert round(interval / 60) == 55
    assert (round(days, 1), round(100 * 30 / days, 1)) == (31.3, 95.9)


@pytest.mark.parametrize(("nodes", "node_mtbf", "save", "recovery"), [(128, 300, 60, 600), (8, 10, 300, 1200)])
def test_a_simulated_job_takes_as_long_as_the_schedule_says(nodes, node_mtbf, save, recovery):
    interval, days = lab()["schedule"](200 * DAY, nodes, node_mtbf * DAY, save, recovery)
    job = Job(nodes, node_mtbf * DAY, interval, save, restart=recovery)
    account = simulate(job, days * DAY, seed=3)
    assert account.useful / DAY == pytest.approx(200, rel=0.02)


def test_half_the_days_are_never_reached():
    once, twice = (lab()["schedule"](DAY * 100 / nodes, nodes, 300 * DAY, 60, 600)[1] for nodes in (128, 256))
    assert twice > once / 2


def test_the_robust_layout_costs_little_as_planned_and_much_less_on_a_slow_network():
    machines = lab()["worlds"](h100_node())
    robust = lab()["robust"](LLAMA_70B, machines, 512, 512, 8192)
    fastest = lab()["layouts"](LLAMA_70B, machines[0], 512, 512, 8192)[0]
    planned, slow = (
        step_time(LLAMA_70B, machine, robust).seconds / step_time(LLAMA_70B, machine, fastest).seconds
        for machine in (machines[0], machines[2])
    )
    assert round(planned, 2) == 1.18, "the debrief says so"
    assert slow < 0.5
    assert (fastest.zero, fastest.tp, robust.zero, robust.tp, robust.recompute) == (3, 4, 3, 1, "full"), (
        "the debrief says so"
    )


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 9), st.integers(1, 9))
def test_no_other_number_of_reserved_gpus_is_cheaper(needed, reserved, on_demand):
    def cost(count):
        return len(needed) * count * reserved + on_demand * sum(max(0, each - count) for each in needed)

    chosen = lab()["reserve"](needed, reserved, on_demand)
    assert cost(chosen) == min(map(cost, range(13)))
    assert all(cost(count) > cost(chosen) for count in range(chosen))


def test_the_worked_example_of_the_reservation():
    assert lab()["reserve"]([2, 4, 4, 10], 3, 5) == 4
    assert lab()["reserve"]([100] * 10 + [20] * 14, 1, 2) == 20
    assert round((100 * 10 + 20 * 14) / 24) == 53


@given(st.floats(1e3, 1e5), st.floats(1, 8), st.floats(0, 1e4), st.floats(0, 1), st.floats(0, 2), st.floats(0, 1))
def test_at_break_even_both_cost_the_same(purchase, years, upkeep, idle, more, per_kwh):
    rent = per_kwh * more + 1
    share = lab()["break_even"](purchase, years, upkeep, idle, idle + more, per_kwh, rent)
    owned = (purchase / years + upkeep) / 8760 + per_kwh * (idle + share * more)
    assert owned == pytest.approx(share * rent)


def test_the_worked_example_of_buying():
    example = (4_000, 0.3, 1.3, 0.10, 2.50)
    assert round(lab()["break_even"](40_000, 4, *example), 3) == 0.678
    assert round(lab()["break_even"](40_000, 2, *example), 2) == 1.15
    assert lab()["break_even"](40_000, 4, 0, 0, 1, 2.5, 2.5) == math.inf


def test_the_worked_example_of_the_review():
    plan = lab()["Plan"](64, 8192, dp=16, zero=3)
    assert int(h100_node().inside.bandwidth / 1e9) == 335
    assert round(step_time(LLAMA_8B, h100_node(), plan).seconds, 2) == 2.85
    claimed = lab()["propose"](LLAMA_8B, h100_node(), plan, 1e12, step=1 / 2.84, inside=2)
    assert lab()["review"](claimed) == ["links", "step"]


def test_every_layout_that_the_planner_offers_passes_the_review():
    for model, machine, gpus in ((LLAMA_70B, a100_node(), 128), (LLAMA_8B, h100_node(), 16)):
        for plan in lab()["layouts"](model, machine, gpus, 256, 4096)[::11]:
            assert lab()["review"](lab()["propose"](model, machine, plan, 1e12)) == []


def test_the_worked_example_of_the_plan():
    ask = lab()["SEVENTY"]
    rows = {}
    for nodes in ask.nodes:
        layout = lab()["layouts"](ask.model, ask.machine, 8 * nodes, ask.batch, ask.sequence)[0]
        interval = lab()["best_interval"](ask.save, ask.node_mtbf / nodes)
        days, cost = lab()["outcome"](ask, nodes, layout, interval)
        rows[nodes] = (round(days), round(cost / 1e6, 2))
    assert rows == {16: (139, 1.07), 64: (36, 1.09), 256: (9, 1.15)}
    offer = lab()["answer"](ask)
    assert (offer.nodes, offer.next_best) == (64, 256)
    refusal = lab()["answer"](lab()["replace"](ask, days=30, budget=1.1e6))
    assert (round(refusal.days), round(refusal.budget / 1e6, 2)) == (36, 1.15)


def test_more_nodes_may_be_cheaper_where_few_have_to_recompute():
    ask = lab()["replace"](lab()["SEVENTY"], model=LLAMA_405B, nodes=(16,), days=math.inf, budget=math.inf)
    few, more = lab()["answer"](ask), lab()["answer"](lab()["replace"](ask, nodes=(32,)))
    assert few.layout.recompute == "full" != more.layout.recompute
    costs = [lab()["outcome"](ask, each.nodes, each.layout, each.interval)[1] for each in (few, more)]
    assert costs[1] < costs[0]
