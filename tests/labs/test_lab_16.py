"""Lab 16: the numbers of its prose, and that its step costs what the course's model of a step says."""

import functools

import numpy as np
import pytest
from lab_source import execute, load, run_exercise
from threeloops.hardware import accelerator
from threeloops.lab.drawings import draw_chunks
from threeloops.lab.drawings.product.batches import draw_budgets
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import CONTINUOUS, Engine, RooflineCost, SimulatedExecutor, StepShape
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.loadgen import measure, mixture, poisson, replay, trace, uniform
from threeloops.simulation.clock import VirtualClock
from threeloops_grader.authoring.answers import right_answers
from threeloops_grader.authoring.labs import find_lab

LLAMA = GPTConfig(128256, 32, 32, 8, 4096, 14336, 8192, tied_embeddings=False)


@functools.cache
def lab():
    """What the setup cells and the reference answers define."""
    source, names = load("16_continuous_batching"), {"__name__": "__main__"}
    execute(source.setup, "<lab 16 setup>", names)
    for exercise, text in source.solutions.items():
        execute(text, f"<lab 16 {exercise}>", names)
    return names


def right_answer(name):
    return next(answer.text for answer in right_answers(find_lab("16")) if answer.name == name)


def step(*chunks):
    """Seconds of bytes alone, of arithmetic alone, and of the step, in the worked example of section 2."""
    model = lab()["Model"](8e9, 32, 4096, 1024)
    devices = [lab()["Device"](*rates) for rates in ((3.35e12, 1e30), (1e30, 989.4e12), (3.35e12, 989.4e12))]
    return [lab()["step_seconds"](list(chunks), model, device) for device in devices]


def test_the_worked_example_of_a_step():
    assert step((999, 1)) == pytest.approx([4.82e-3, 0.017e-3, 4.82e-3], rel=0.03)
    assert step((999, 1))[1] * 989.4 == pytest.approx(16.5e-3, rel=1e-2)
    assert step((0, 2048)) == pytest.approx([4.9e-3, 34.2e-3, 34.2e-3], rel=0.02)
    assert step((0, 2048))[1] * 989.4 == pytest.approx(33.9, rel=1e-2)
    assert step(*[(999, 1)] * 64)[2] == pytest.approx(7.28e-3, rel=1e-3)
    assert step((0, 4000))[2] == pytest.approx(70e-3, rel=0.03)


def test_the_knee_and_what_the_weights_weigh():
    assert pytest.approx(295, abs=0.5) == 989.4e12 / 3.35e12
    assert pytest.approx(122_000, rel=1e-2) == 16e9 / 131_072
    assert pytest.approx(8e-3) == 500 * 16e-6
    copied = 500 * 131_072
    assert copied == pytest.approx(66e6, rel=1e-2)
    assert copied / accelerator("H100").host_link_bandwidth == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("chunks", [((999, 1),), ((999, 1),) * 64, ((500, 256),), ((0, 2048), (700, 1))])
def test_the_exercise_and_the_course_agree_on_a_step(chunks):
    """But for the embedding, which is no matrix product, and the head, which sees only the last token of a chunk."""
    course = RooflineCost(LLAMA, accelerator("H100"))(StepShape(tuple((*chunk, True) for chunk in chunks)))
    assert 1 < step(*chunks)[2] / course < 1.15


def test_the_mix_of_section_5_has_long_gaps_with_whole_prompts():
    prompts = mixture((0.8, uniform(50, 300)), (0.2, uniform(2000, 6000)))
    arrivals, clock = trace(poisson(12.0, 4), 150, prompts, uniform(40, 160), seed=4), VirtualClock()
    policy = CONTINUOUS.__class__(max_running=64, token_budget=6000, chunked=False, prefix_cache=False)
    executor = SimulatedExecutor(clock, RooflineCost(LLAMA, accelerator("H100")))
    run = replay(Engine(executor, BlockManager(8192, 16), policy, clock), arrivals)
    assert round(1e3 * measure(run.requests).itl.p99) == 48


def in_time(workload, seats, budget, seed):
    """The share of a service's requests that meet both limits, decided by the reference of exercise 5."""
    names = lab()
    made = names["arrivals"](workload.rate, workload.requests, workload.prompts, workload.outputs, seed)
    served = names["serve"](made, names["filling"](names["fill_step"], seats, budget), keys_cost=True)
    gaps = np.concatenate([np.diff(request.times) for request in served])
    met = [
        not names["beyond"](request.times[0] - request.arrival, workload.ttft)
        and not names["beyond"](max(np.diff(request.times)), workload.gap)
        for request in served
    ]
    return np.mean(met), np.median(gaps)


def test_the_worked_example_of_the_services():
    share, gap = in_time(lab()["WORKLOADS"][1], 64, 512, 2)
    assert share == pytest.approx(0.4, abs=0.05)
    assert gap == pytest.approx(6e-3, rel=0.1)
    assert pytest.approx(106, abs=0.5) == 220 * 80 * 6e-3
    assert in_time(lab()["WORKLOADS"][1], 96, 512, 2)[0] >= 0.9  # the trace is short, so a few fewer pass, too


@pytest.mark.parametrize(("service", "seats", "budget"), [(0, 64, 1250), (2, 14, 625)])
def test_a_step_that_takes_the_whole_gap_meets_its_limit(service, seats, budget):
    """16 µs · budget is the limit itself, and a sum of such steps is off by rounding."""
    workload = lab()["WORKLOADS"][service]
    assert budget * 16e-6 == pytest.approx(workload.gap, rel=1e-12)
    assert in_time(workload, seats, budget, 2)[0] >= 0.9


@pytest.mark.parametrize(
    ("seats", "budget", "missed"),
    [
        (64, 256, "documents"),
        (256, 256, "documents"),
        (16, 512, "extraction"),
        (64, 512, "long chat"),
        (110, 512, "long chat"),
        (110, 1000, "long chat"),
    ],
)
def test_no_pair_serves_all_three(seats, budget, missed):
    (workload,) = (each for each in lab()["WORKLOADS"] if each.name == missed)
    assert in_time(workload, seats, budget, 2)[0] < 0.9


IN_PLACE = [
    "measure__takes_the_times_off_its_lists",
    "step_seconds__takes_chunks_off_the_list",
    "admit__takes_requests_off_the_queue",
    "make_room__extends_the_tables_that_it_gets",
    "make_room__takes_requests_off_running",
    "fill_step__takes_requests_off_running",
    "find_prefix__tuples_as_keys",
]


@pytest.mark.parametrize(
    "name", [*IN_PLACE, "admit__an_array_of_names", "choose_limits__the_whole_gap_in_numbers_of_numpy"]
)
def test_an_answer_is_right_in_the_notebook_as_well_as_behind_the_wall(name):
    """The wall copies arguments and turns results into plain data. Beside the answer, the checks have to do that."""
    source = load("16_continuous_batching")
    assert run_exercise(source, name.split("__")[0], right_answer(name)) is None


@pytest.mark.parametrize("name", IN_PLACE)
def test_that_answer_does_change_what_it_is_given(name):
    names = dict(lab())
    execute(right_answer(name), f"<{name}>", names)
    cached = {("", (1, 2)): 7}
    given = {
        "measure": ([(0.0, [0.3, 0.4]), (0.5, [1.0])], 1.0, 1.0),
        "step_seconds": ([(999, 1)], names["Model"](8e9, 32, 4096, 1024), names["Device"](3.35e12, 989.4e12)),
        "admit": ([("a", 10, 6)], names["Room"](1, 9, 600)),
        "make_room": ([("a", 8, [0, 1]), ("b", 9, [2, 3]), ("c", 4, [4])], [], 4),
        "fill_step": ([("a", 30, 31)], 8),
        "find_prefix": (names["Prompt"]((1, 2, 3)), cached, 2),
    }[name.split("__")[0]]
    before = repr(given)
    names[name.split("__")[0]](*given)
    assert repr(given) != before


def test_little_s_law_and_the_gap_leave_room_for_long_chats():
    """2.5 per second need 11 to 12 seats, and the gap allows 14 even if all requests are the longest."""
    workload = lab()["WORKLOADS"][2]
    step = 5e-3 + 40e-9 * 12 * 7500
    assert 10 < workload.rate * 500 * step < 12 < 5e-3 / 40e-9 / 8600 < 15
    for seed in (1, 2, 3):
        assert in_time(workload, 14, 500, seed)[0] >= 0.9


def test_the_picture_of_an_engine_has_a_row_per_request():
    steps = [[("a", 0, 4, True)], [("a", 4, 1, True), ("b", 0, 3, False)], [("b", 3, 2, True)]]
    assert [label.get_text() for label in draw_chunks(["a", "b"], steps).axes[0].get_yticklabels()] == ["a", "b"]
    assert [t.get_text() for t in draw_budgets({"whole": (48.0, 0.2), "512": (9.0, 0.3)}).axes[0].texts] == [
        "whole",
        "512",
    ]


def test_the_latencies_of_the_worked_example():
    found = lab()["latencies"]([(0.0, [0.3, 0.4, 0.8]), (0.5, [1.0])])
    assert found == pytest.approx({"ttft": 0.4, "itl": 0.397, "tpot": 0.25})
    assert lab()["latencies"]([(0.0, [0.5]), (1.0, [1.25])]) == {"ttft": 0.375, "itl": 0.0, "tpot": 0.0}
    assert np.mean([5.0] * 49 + [100.0]) == pytest.approx(6.9) and np.percentile([5.0] * 490 + [100.0] * 10, 99) == 100
