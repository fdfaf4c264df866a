"""The pipeline simulator against laws it must obey and an event simulation; traces and what they say."""

import heapq
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.data.loading.diagnosis import diagnose
from threeloops.simulation.gantt import draw
from threeloops.simulation.pipeline import Interval, Stage, Trace, simulate

STAGES = st.lists(
    st.builds(
        Stage, st.sampled_from("abcdef"), st.integers(0, 9).map(float), workers=st.integers(1, 4),
        queue=st.integers(0, 3),
    ),
    min_size=1, max_size=4, unique_by=lambda stage: stage.name,
)  # fmt: skip


def by_events(stages, samples, ahead):
    """The same rules, run as events: (stage, sample) → (start, end)."""
    times, now, events = {}, 0.0, []
    finished = [set() for _ in stages]  # done and still with their worker
    busy = [0] * len(stages)
    queues = [[] for _ in stages]  # queues[s] lies before stage s
    entered, left_stage, left = 0, [0] * len(stages), 0
    while left < samples:
        moved = True
        while moved:
            moved = False
            for s in reversed(range(len(stages))):
                ready = left_stage[s]
                if ready in finished[s]:
                    last = s + 1 == len(stages)
                    direct = not last and not stages[s].queue and busy[s + 1] < stages[s + 1].workers
                    if last or len(queues[s + 1]) < stages[s].queue or direct:
                        finished[s].discard(ready)
                        busy[s] -= 1
                        left_stage[s] += 1
                        left += last
                        if not last:
                            queues[s + 1].append(ready)
                        moved = True
                if s == 0 and entered < samples and (ahead is None or entered <= left + ahead) and not queues[0]:
                    queues[0].append(entered)
                    entered += 1
                if queues[s] and busy[s] < stages[s].workers:
                    sample = queues[s].pop(0)
                    busy[s] += 1
                    times[s, sample] = (now, now + stages[s].latency)
                    heapq.heappush(events, (now + stages[s].latency, s, sample))
                    moved = True
        if events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, s, sample = heapq.heappop(events)
                finished[s].add(sample)
    return times


@settings(max_examples=150)
@given(STAGES, st.integers(1, 14), st.one_of(st.none(), st.integers(0, 6)))
def test_the_recurrence_is_the_event_simulation(stages, samples, ahead):
    trace = simulate(stages, [0] * samples, ahead)
    number = {stage.name: i for i, stage in enumerate(stages)}
    assert {(number[i.stage], i.sample): (i.start, i.end) for i in trace.intervals} == by_events(stages, samples, ahead)


@given(STAGES, st.integers(1, 12))
def test_nothing_ahead_is_a_serial_loop(stages, samples):
    assert simulate(stages, [0] * samples, ahead=0).seconds == samples * sum(stage.latency for stage in stages)


@given(STAGES, st.integers(1, 12), st.integers(0, 5))
def test_laws(stages, samples, ahead):
    trace = simulate(stages, [0] * samples, ahead)
    floor = max(stage.latency * -(-samples // stage.workers) for stage in stages)
    assert floor <= trace.seconds <= simulate(stages, [0] * samples, 0).seconds
    for name, workers in trace.stages:
        for each in trace.by_stage[name]:
            at_once = [i for i in trace.by_stage[name] if i.start <= each.start < i.end]
            assert len(at_once) <= workers
    alive = {
        i: (trace.by_stage[stages[0].name][i].start, trace.by_stage[stages[-1].name][i].end) for i in range(samples)
    }
    for start, _ in alive.values():
        assert sum(begin <= start < end for begin, end in alive.values()) <= ahead + 1


STORE = [
    Stage("request", latency=0.030, workers=8),
    Stage("transfer", bandwidth=200e6),
    Stage("decode", latency=0.004, workers=2),
    Stage("copy", bandwidth=12e9),
    Stage("train", latency=0.010),
]


def test_the_stated_pipeline_is_starved_without_prefetch_and_fed_with_it():
    sizes = [600_000] * 200
    assert simulate(STORE, sizes, ahead=0).utilisation < 0.40
    assert simulate(STORE, sizes, ahead=16).utilisation >= 0.95


def test_utilisation_lasts_until_the_last_end_and_not_until_the_end_of_the_last_start():
    """Two consumers: one works from 1 s to 11 s, the other from 2 s to 3 s."""
    stages = [Stage("fetch", latency=1.0), Stage("train", bandwidth=1.0, workers=2)]
    assert simulate(stages, [10, 1]).utilisation == pytest.approx((10 + 1) / 10 / 2)


@given(STAGES, st.integers(1, 12))
def test_a_consumer_is_never_busier_than_always(stages, samples):
    stages = [*stages, Stage("consumer", 1.0, workers=3)]
    assert 0 < simulate(stages, [0] * samples).utilisation <= 1 + 1e-9


def test_bytes_take_their_time():
    (only,) = simulate([Stage("a", 0.5, 100.0)], [250]).intervals
    assert (only.start, only.end) == (0.0, 3.0)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Stage("a", -1), "latency -1"),
        (lambda: Stage("a", workers=0), "0 workers"),
        (lambda: Stage("a", queue=-1), "queue -1"),
        (lambda: Stage("a", bandwidth=0), "bandwidth 0"),
        (lambda: simulate([], [1]), "0 stages"),
        (lambda: simulate([Stage("a")], []), "0 samples"),
        (lambda: simulate([Stage("a")], [1], -1), "ahead = -1"),
    ],
)
def test_impossible_pipelines_are_named(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_the_limit_of_a_full_pipeline_is_its_busiest_stage():
    found = diagnose(
        simulate([Stage("read", 0.03, workers=4), Stage("decode", 0.02, workers=2), Stage("train", 0.005)], [0] * 100)
    )
    assert (found.limit, found.overlapped) == ("decode", True)
    assert found.gain["decode"] == pytest.approx(0.010 / 0.0075)
    assert found.gain["read"] == found.gain["train"] == 1.0
    assert found.busy["decode"] > 0.95 and found.utilisation == pytest.approx(0.5, abs=0.01)


def test_doubling_the_limit_gives_what_was_predicted():
    stages = [Stage("read", 0.03, workers=4), Stage("decode", 0.02, workers=2), Stage("train", 0.005)]
    before, after = (
        simulate([stages[0], decode, stages[2]], [0] * 4000).seconds
        for decode in (stages[1], Stage("decode", 0.02, workers=4))
    )
    assert before / after == pytest.approx(diagnose(simulate(stages, [0] * 100)).gain["decode"], rel=0.01)


def test_a_serial_loop_is_limited_by_everything():
    found = diagnose(simulate([Stage("read", 0.03), Stage("train", 0.01)], [0] * 50, ahead=0))
    assert not found.overlapped and found.limit == "read"
    assert found.gain == pytest.approx({"read": 0.04 / 0.025, "train": 0.04 / 0.035})
    assert found.blame == pytest.approx({"read": 49 * 0.03})


def test_workers_that_never_work_at_once_share_nothing():
    found = diagnose(simulate([Stage("read", 0.03, workers=8), Stage("train", 0.01)], [0] * 50, ahead=0))
    assert found.limit == "read" and found.gain["read"] == pytest.approx(0.04 / 0.025)


def test_blame_is_where_the_awaited_sample_was():
    trace = Trace(
        (("read", 2), ("decode", 1), ("train", 1)),
        (
            Interval("read", 0, 0, 0, 1), Interval("decode", 0, 0, 1, 2), Interval("train", 0, 0, 2, 3),
            Interval("read", 1, 1, 0, 4), Interval("decode", 0, 1, 5, 7), Interval("train", 0, 1, 7, 8),
        ),
    )  # fmt: skip
    found = diagnose(trace)
    assert found.blame == {"read": 1.0, "decode": 2.0}
    assert found.utilisation == pytest.approx(2 / 6)


def test_a_trace_that_consumed_nothing_is_refused():
    with pytest.raises(ValueError, match="'train' has no intervals"):
        diagnose(Trace((("read", 1), ("train", 1)), (Interval("read", 0, 0, 0, 1),)))


def test_a_trace_can_be_drawn_with_a_row_for_each_worker():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw(simulate(STORE, [1000] * 5), axes, until=0.1)
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["request 1", "request 2"]
    assert len(axes.patches) == 25


def test_neighbours_in_a_row_differ_and_a_stage_keeps_its_colour():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw(simulate(STORE, [600_000] * 40), axes)
    row = sorted(
        (bar for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == 0), key=lambda b: b.get_x()
    )
    assert len(row) == 5 and all(a.get_facecolor() != b.get_facecolor() for a, b in pairwise(row))
    assert all(bar.get_alpha() is None for bar in row), "a number on a bar that lets a dark page through cannot be read"
    short = Figure().subplots()
    draw(simulate([STORE[2], STORE[4]], [1] * 3), short)
    decode = next(b for b in axes.patches if round(b.get_y() + b.get_height() / 2) == 9)
    assert short.patches[0].get_facecolor()[:3] == decode.get_facecolor()[:3]
