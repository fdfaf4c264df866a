"""Load as data: when requests arrive, how long they are, and what they share."""

import json
import math
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import mean, median, stdev

import numpy as np
import pytest
from threeloops.product.loadgen import (
    Arrival,
    bursty,
    conversations,
    load_trace,
    lognormal,
    mixture,
    on_off,
    poisson,
    prompt_tokens,
    requests_of,
    save_trace,
    trace,
    uniform,
)

MANY = 20_000


def gaps(arrivals, count=MANY):
    moments = list(islice(arrivals, count))
    return np.diff([0.0, *moments])


@pytest.mark.parametrize("variation", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(variation):
    found = gaps(bursty(5.0, variation, seed=1))
    assert found.min() >= 0
    assert found.mean() == pytest.approx(1 / 5, rel=0.08)
    assert found.std() / found.mean() == pytest.approx(variation, rel=0.08, abs=1e-9)


def test_poisson_gaps_are_exponential():
    found = np.sort(gaps(poisson(2.0, seed=2)))
    cumulative = 1 - np.exp(-2.0 * found)
    assert np.abs(cumulative - np.arange(1, MANY + 1) / MANY).max() < 1.6 / math.sqrt(MANY)  # Kolmogorov–Smirnov, 1%


def test_on_off_is_silent_when_off_and_keeps_the_mean_rate():
    moments = list(islice(on_off(10.0, on=2.0, off=3.0, seed=3), MANY))
    assert all(moment % 5.0 <= 2.0 for moment in moments) and moments == sorted(moments)
    assert MANY / moments[-1] == pytest.approx(10.0, rel=0.05)
    within = [moment % 5.0 for moment in moments]
    assert mean(within) == pytest.approx(1.0, rel=0.05)
    steady = list(islice(on_off(10.0, on=2.0, off=0.0, seed=3), 50))
    assert steady == list(islice(poisson(10.0, seed=3), 50))


def test_lengths_are_distributed_as_they_say():
    random = Random(0)
    even = [uniform(3, 6)(random) for _ in range(4000)]
    assert set(even) == {3, 4, 5, 6} and mean(even) == pytest.approx(4.5, rel=0.03)
    logs = [lognormal(100, 0.8)(random) for _ in range(4000)]
    assert median(logs) == pytest.approx(100, rel=0.06)
    assert stdev([math.log(each) for each in logs]) == pytest.approx(0.8, rel=0.06)
    cut = [lognormal(100, 2.0, 20, 300)(random) for _ in range(500)]
    assert min(cut) == 20 and max(cut) == 300
    skewed = [mixture((9, uniform(1, 2)), (1, uniform(50, 60)))(random) for _ in range(4000)]
    assert sum(each >= 50 for each in skewed) / 4000 == pytest.approx(0.1, abs=0.02)
    assert {each for each in skewed if each < 50} == {1, 2}


def test_a_trace_is_decided_by_its_seed():
    def make(seed):
        return trace(
            poisson(5, seed), 30, uniform(2, 9), uniform(1, 4), prefixes=2, prefix_length=5, clients=3, seed=seed
        )

    assert make(1) == make(1) != make(2)
    assert [arrival.at for arrival in make(1)] == sorted(arrival.at for arrival in make(1)) and len(make(1)) == 30
    assert {arrival.client for arrival in make(1)} == {"client-0", "client-1", "client-2"}


def test_shared_prefixes_are_equal_tokens_and_the_rest_is_not():
    arrivals = trace(poisson(5), 40, uniform(8, 8), uniform(1, 4), prefixes=2, prefix_length=6, seed=1)
    prompts = [prompt_tokens(arrival, 1000) for arrival in arrivals]
    assert len({prompt[:6] for prompt in prompts}) == 2 and len({prompt[6:] for prompt in prompts}) == 40
    assert {len(prompt) for prompt in prompts} == {14} == {arrival.prompt_length for arrival in arrivals}
    assert all(0 <= token < 1000 for prompt in prompts for token in prompt)
    alone = trace(poisson(5), 3, uniform(8, 8), uniform(1, 4), seed=1)
    assert [len(arrival.prompt) for arrival in alone] == [1, 1, 1]


def test_each_turn_of_a_conversation_repeats_the_one_before_and_its_answer():
    arrivals = conversations(poisson(1, 0), 12, 4, 10, uniform(2, 5), uniform(3, 6), think=2.0, seed=7)
    assert len(arrivals) == 12 and [each.at for each in arrivals] == sorted(each.at for each in arrivals)
    prompts = {arrival: prompt_tokens(arrival, 500) for arrival in arrivals}
    assert len({prompt[:10] for prompt in prompts.values()}) == 1, "the system prompt"
    talks = {}
    for arrival in arrivals:
        talks.setdefault(arrival.prompt[1], []).append(arrival)
    assert len(talks) == 3
    for turns in talks.values():
        assert [len(turn.prompt) for turn in turns] == [2, 4, 6, 8]
        for before, after in zip(turns, turns[1:], strict=False):
            assert prompts[after][: len(prompts[before])] == prompts[before]
            assert after.prompt[-2][1] == before.max_tokens, "what stands in for the answer is as long"
    waits = [after.at - before.at for turns in talks.values() for before, after in zip(turns, turns[1:], strict=False)]
    assert min(waits) > 0


def test_requests_have_everything_of_the_trace_and_start_with_the_clock():
    arrivals = [Arrival(0.5, ((1, 3),), 4, "me", 2), Arrival(1.5, ((2, 3), (3, 2)), 1)]
    first, second = requests_of(arrivals, 50, start=100.0)
    assert (first.arrival, first.client, first.priority, first.sampling.max_tokens) == (100.5, "me", 2, 4)
    assert second.arrival == 101.5 and len(second.prompt) == 5 and first.id != second.id


def test_a_trace_is_saved_a_line_per_request_and_read_back(tmp_path):
    arrivals = trace(bursty(5, 2.0), 20, uniform(2, 9), uniform(1, 4), prefixes=2, prefix_length=5, clients=2)
    save_trace(tmp_path / "trace.jsonl", arrivals)
    assert load_trace(tmp_path / "trace.jsonl") == arrivals
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert len(lines) == 20 and json.loads(lines[3])["at"] == arrivals[3].at


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: .*expected"),
        ('{"at": 2}', "line 2: .*prompt"),
        ('{"at": 2, "prompt": [[1, 0]], "max_tokens": 3}', "line 2: prompt = "),
        ('{"at": 2, "prompt": [], "max_tokens": 3}', "line 2: prompt = "),
        ('{"at": -2, "prompt": [[1, 1]], "max_tokens": 3}', "line 2: at = -2"),
        ('{"at": 2, "prompt": [[1, 1]], "max_tokens": 0}', "line 2: .*max_tokens = 0"),
        ('{"at": 0.5, "prompt": [[1, 1]], "max_tokens": 3}', "line 2: at = 0.5 is before the line above"),
        ('{"at": 2, "prompt": [[1, 1]], "max_tokens": 3, "more": 1}', "line 2: .*more"),
    ],
)
def test_a_line_that_is_no_arrival_is_named(tmp_path, line, said):
    save_trace(path := tmp_path / "trace.jsonl", [Arrival(1.0, ((1, 1),), 3)])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=said):
        load_trace(path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: next(poisson(0)), "rate = 0: expected a number above 0"),
        (lambda: next(bursty(1, -1)), "variation = -1"),
        (lambda: next(bursty(math.inf, 1)), "rate = inf"),
        (lambda: next(on_off(1, 0, 1)), "on = 0"),
        (lambda: next(on_off(1, 1, -1)), "off = -1"),
        (lambda: uniform(0, 5), "low = 0, high = 5: expected 1 ≤ low ≤ high"),
        (lambda: uniform(5, 4), "low = 5, high = 4"),
        (lambda: lognormal(0, 1), "median = 0"),
        (lambda: mixture(), "a mixture of nothing"),
        (lambda: replace(Arrival(0, ((1, 1),), 1), at=math.nan), "at = nan"),
    ],
)
def test_a_parameter_that_is_none_is_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()
