"""The simulator against a relaxation that knows no events, and what it says about memory and bubbles."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import drawn, written
from threeloops.training.cluster import uniform
from threeloops.training.pipeline import (
    Action,
    Durations,
    IllegalSchedule,
    Timed,
    Timeline,
    Transfers,
    gpipe,
    one_f_one_b,
    simulate,
    zb_v,
)


def relaxed(schedule, seconds, transfer):
    """Starts and ends: from zero, raised until every action begins after all that it waits for."""
    stages, start = schedule.stages, {action: 0.0 for row in schedule.rows for action in row}
    changed = True
    while changed:
        changed = False
        for rank, row in enumerate(schedule.rows):
            for before, action in zip([None, *row], row, strict=False):
                kind, stage, i = action
                waits = [start[before] + seconds[before.kind][before.stage]] if before else [0.0]
                source, kinds = (stage - 1, "F") if kind == "F" else (stage + 1, "BI")
                for other in kinds if kind != "W" and 0 <= source < stages else ():
                    needed = Action(other, source, i)
                    if needed in start:
                        far = transfer if schedule.placement[source] != rank else 0.0
                        waits.append(start[needed] + seconds[other][source] + far)
                if max(waits) > start[action]:
                    start[action], changed = max(waits), True
    return [[Timed(a, start[a], start[a] + seconds[a.kind][a.stage]) for a in row] for row in schedule.rows]


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 4), st.integers(1, 2), st.integers(1, 4), st.data())
def test_start_and_end_of_every_action_of_any_schedule(seed, ranks, chunks, microbatches, data):
    schedule = drawn(seed, ranks, chunks, microbatches)
    lengths = st.lists(st.integers(0, 5), min_size=schedule.stages, max_size=schedule.stages)
    seconds = {kind: data.draw(lengths) for kind in "FIWB"}
    transfer = data.draw(st.integers(0, 4))
    timeline = simulate(schedule, Durations(*seconds.values()), transfer)
    assert timeline.rows == relaxed(schedule, seconds, transfer)


def test_a_transfer_delays_each_hop_and_costs_no_rank_any_time():
    """One microbatch on three ranks: three forwards, three backwards, two hops each way."""
    timeline = simulate(one_f_one_b(3, 1), Durations(forward=1, backward=2), transfers=0.25)
    assert [[each.start for each in row] for row in timeline.rows] == [[0, 8], [1.25, 5.75], [2.5, 3.5]]
    assert timeline.seconds == 3 * (1 + 2) + 4 * 0.25
    assert timeline.idle == [7.0, 7.0, 7.0] and timeline.bubble == [0.7, 0.7, 0.7]


def test_stages_of_one_rank_hand_over_at_once():
    timeline = simulate(zb_v(1, 1), transfers=100.0)
    assert timeline.seconds == 6 and timeline.idle == [0.0]


def test_messages_queue_for_their_link():
    """Each takes 2 s on the wire and 1 s on the way, and a forward 1 s: the second waits for the first to leave."""
    timeline = simulate(gpipe(2, 3), Durations(1, 0, 0, 1), Transfers(uniform(2, 1.0, 4.0), 8))
    assert [each.start for each in timeline.rows[1]] == [4, 6, 8, 9, 10, 11]
    assert [each.start for each in timeline.rows[0]] == [0, 1, 2, 13, 15, 17]


def test_sizes_are_those_between_two_stages_both_ways():
    rows = simulate(one_f_one_b(3, 1), transfers=Transfers(uniform(3, 0.0, 1.0), [5, 3])).rows
    assert [row[0].start for row in rows] == [0, 1 + 5, 2 + 5 + 3]
    assert rows[1][1].start - rows[2][1].end == 3 and rows[0][1].start - rows[1][1].end == 5


def test_a_whole_backward_takes_as_long_as_its_parts_unless_told_otherwise():
    assert Durations(1, 2, 3).seconds("B", 2) == [5, 5]
    assert Durations(1, [2, 4], 3).seconds("B", 2) == [5, 7]
    assert Durations(1, 2, 3, 4.5).seconds("B", 2) == [4.5, 4.5]
    assert Durations([1, 2]).seconds("F", 2) == [1, 2]


def test_stages_of_unequal_length_are_as_slow_as_the_slowest():
    """In the steady state the others wait for it."""
    durations = Durations(forward=[1, 1, 3, 1], backward=[2, 2, 6, 2])
    timeline = simulate(one_f_one_b(4, 20), durations)
    assert timeline.idle[2] == 2 * 1 + 2 * 2  # while two stages before it fill, and drain
    assert timeline.seconds == 20 * 9 + timeline.idle[2]


def test_memory_counts_activations_by_the_weight_of_their_stage():
    schedule = zb_v(3, 9)
    assert simulate(schedule).peak() == [6, 6, 6]
    assert simulate(schedule).peak([0.5] * 6) == [3, 3, 3]
    assert simulate(schedule).peak([1, 1, 1, 0, 0, 0]) == [6, 5, 4]


def test_a_beginning_is_simulated_as_far_as_it_can_be_executed():
    beginning = written("0F0 0F1\n1F0 1B0 1F1 1F2", (0, 1), 3)
    rows = simulate(beginning, Durations(forward=1, backward=2), complete=False).rows
    assert rows == [
        [Timed(Action("F", 0, 0), 0, 1), Timed(Action("F", 0, 1), 1, 2)],
        [Timed(Action("F", 1, 0), 1, 2), Timed(Action("B", 1, 0), 2, 4), Timed(Action("F", 1, 1), 4, 5)],
    ]
    nothing = simulate(written("\n", (0, 1), 1), complete=False)
    assert (nothing.seconds, nothing.idle, nothing.bubble, nothing.peak()) == (0.0, [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1", "rank 1, position 1: .* waits for"),
        ("0F0 0F1 0B0 0B1\n1F0 1B0 1F1", "rank 1, position 3: backward of microbatch 1 on stage 1 is missing"),
        ("0F0 0F1 0B0 0I1\n1F0 1B0 1F1 1B1", "rank 0, position 4: weight gradient of .* is missing"),
        ("0F0 0F1 0B0 0B1 0B1\n1F0 1B0 1F1 1B1", "rank 0, position 4: .* is done twice"),
        ("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1 0F0", "rank 1, position 4: .* is not this rank's"),
        ("0F0 0F1 0B0 0B1 0F7\n1F0 1B0 1F1 1B1", "rank 0, position 4: .* no such microbatch"),
        ("0F0 0F1 0B0 0B1\n1B0 1F0 1F1 1B1", "rank 1, position 0: .* before its forward"),
        ("0F0 0X1 0B0 0B1\n1F0 1B0 1F1 1B1", "rank 0, position 1: .* is none of F, B, I and W"),
    ],
)
def test_what_cannot_be_executed_is_refused_with_the_checkers_reason(text, said):
    with pytest.raises(IllegalSchedule, match=said):
        simulate(written(text, (0, 1), 2))


def test_a_beginning_that_cannot_be_completed_is_refused():
    with pytest.raises(IllegalSchedule, match="rank 1, position 1: .* waits for"):
        simulate(written("0F0 0B0\n1F0 1F1", (0, 1), 2), complete=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((Durations(forward=[1, 2, 3]),), r"forward = \[1, 2, 3\].*2, one per stage"),
        ((Durations(weight_gradient=-1),), "weight_gradient = -1: expected seconds, 0 or more"),
        ((Durations(backward=float("inf")),), "backward = inf"),
        ((Durations(), -0.5), r"transfers = -0\.5 s"),
        ((Durations(), Transfers(uniform(2), [1, 2])), "2 sizes for 2 stages"),
        ((Durations(), Transfers(uniform(1), 1)), "has 1 ranks: the schedule needs 2"),
    ],
)
def test_numbers_that_cannot_be(arguments, said):
    with pytest.raises(ValueError, match=said):
        simulate(one_f_one_b(2, 2), *arguments)


def test_a_measured_step_may_begin_at_any_time():
    late = Timeline([[Timed(Action("F", 0, 0), 7.0, 8.0), Timed(Action("B", 0, 0), 9.0, 11.0)], []])
    assert (late.start, late.seconds, late.idle, late.bubble) == (7.0, 4.0, [1.0, 4.0], [0.25, 1.0])
