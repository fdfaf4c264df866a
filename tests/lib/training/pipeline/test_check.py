"""The checker says yes exactly where a schedule can be executed, and otherwise names a step and a reason."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import drawn, executable, written
from threeloops.training.pipeline import (
    Action,
    IllegalSchedule,
    Schedule,
    check,
    gpipe,
    interleaved,
    most_in_flight,
    one_f_one_b,
    zb_h1,
    zb_v,
)


def refused(text, placement=(0, 1), microbatches=2, **options):
    """Rank, position, action and reason of the step that is refused; the message holds them all."""
    with pytest.raises(IllegalSchedule) as caught:
        check(written(text, placement, microbatches), **options)
    found = caught.value
    assert str(found) == f"rank {found.rank}, position {found.position}: {found.action} {found.why}"
    return found.rank, found.position, str(found.action), found.why


# Wrong in its own row


@pytest.mark.parametrize(
    ("row", "position", "action", "why"),
    [
        ("1B0", 0, "backward of microbatch 0 on stage 1", "comes before its forward"),
        ("1F0 1B1", 1, "backward of microbatch 1 on stage 1", "comes before its forward"),
        ("1F0 1F0", 1, "forward of microbatch 0 on stage 1", "is done twice: first at position 0"),
        ("1F0 1B0 1B0", 2, "backward of microbatch 0 on stage 1", "is done twice: first at position 1"),
        ("1I0", 0, "input gradient of microbatch 0 on stage 1", "comes before its forward"),
        ("1F0 1W0", 1, "weight gradient of microbatch 0 on stage 1", "comes before its input gradient"),
        ("1W0", 0, "weight gradient of microbatch 0 on stage 1", "comes before its forward"),
        ("1F0 1I0 1W0 1W0", 3, "weight gradient of microbatch 0 on stage 1", "is done twice: first at position 2"),
        (
            "1F0 1B0 1I0",
            2,
            "input gradient of microbatch 0 on stage 1",
            "comes after the whole backward at position 1, which includes it",
        ),
        (
            "1F0 1B0 1W0",
            2,
            "weight gradient of microbatch 0 on stage 1",
            "comes after the whole backward at position 1, which includes it",
        ),
        (
            "1F0 1I0 1B0",
            2,
            "backward of microbatch 0 on stage 1",
            "comes after its input gradient at position 1: expected its weight gradient alone",
        ),
        ("0F0", 0, "forward of microbatch 0 on stage 0", "is not this rank's: stage 0 is on rank 0"),
        ("1F0 1F2", 1, "forward of microbatch 2 on stage 1", "has no such microbatch: expected 0 to 1"),
        ("2F0", 0, "forward of microbatch 0 on stage 2", "has no such stage: expected 0 to 1"),
        ("1X0", 0, "'X' of microbatch 0 on stage 1", "is none of F, B, I and W"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_a_step_that_contradicts_its_own_row(row, position, action, why, complete):
    assert refused(f"0F0 0F1 0B0 0B1\n{row}", complete=complete) == (1, position, action, why)


def test_the_earliest_position_is_named_whichever_its_rank():
    assert refused("0F0 0F1 0B0 0B0\n1F0 1W0")[:2] == (1, 1)
    assert refused("0F0 0W0\n1F0 1F1 1F1")[:2] == (0, 1)


# Deadlocks


def test_a_deadlock_is_told_step_by_step():
    """Rank 1 wants two microbatches before it sends a gradient; rank 0 wants that before it sends the second."""
    assert refused("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1") == (
        1,
        1,
        "forward of microbatch 1 on stage 1",
        "waits for forward of microbatch 1 on stage 0, "
        "which on rank 0 comes after backward of microbatch 0 on stage 0, "
        "which waits for backward of microbatch 0 on stage 1, which on rank 1 comes after it",
    )


def test_a_deadlock_of_three_ranks_with_divided_backwards():
    assert refused("0F0 0I0 0W0 0F1 0B1\n1F0 1I0 1F1 1W0 1B1\n2F0 2F1 2I0 2W0 2B1", placement=(0, 1, 2)) == (
        2,
        1,
        "forward of microbatch 1 on stage 2",
        "waits for forward of microbatch 1 on stage 1, "
        "which on rank 1 comes after input gradient of microbatch 0 on stage 1, "
        "which waits for input gradient of microbatch 0 on stage 2, which on rank 2 comes after it",
    )


def test_a_deadlock_comes_before_later_mistakes_and_after_earlier_ones():
    assert refused("0F0 0B0 0F1 0F1\n1F0 1F1 1B0 1B1")[:2] == (1, 1)
    assert refused("0F0 0W0 0F1 0B1\n1F0 1F1 1B0 1B1")[:2] == (0, 1)


def test_a_rank_that_waits_for_itself():
    assert refused("0F0 3F0\n2F0 1F0", placement=(0, 1, 1, 0), microbatches=1, complete=False) == (
        1,
        0,
        "forward of microbatch 0 on stage 2",
        "waits for forward of microbatch 0 on stage 1, which on rank 1 comes after it",
    )


def test_other_orders_of_microbatches_are_legal():
    check(written("0F0 0F1 0B0 0B1\n1F1 1F0 1B0 1B1", (0, 1), 2))
    check(written("0F0 0F1 0B1 0I0 0W0\n1F0 1F1 1B0 1I1 1W1", (0, 1), 2))


# Beginnings of schedules


def test_nothing_is_a_beginning_and_no_schedule():
    empty = Schedule([[], []], (0, 1), 1)
    check(empty, complete=False)
    with pytest.raises(IllegalSchedule, match="rank 0, position 0: forward of microbatch 0 on stage 0 is missing"):
        check(empty)


def test_what_is_missing():
    assert refused("0F0 0B0 0F1\n1F0 1B0 1F1 1B1") == (0, 3, "backward of microbatch 1 on stage 0", "is missing")
    assert refused("0F0 0B0 0F1 0I1\n1F0 1B0 1F1 1B1")[2:] == (
        "weight gradient of microbatch 1 on stage 0",
        "is missing",
    )


def test_a_step_is_early_if_others_can_still_come_before_it():
    check(written("\n1F0 1B0", (0, 1), 1), complete=False)
    check(written("0F0 0F1 0B0\n", (0, 1), 2), complete=False)


def test_a_step_is_refused_as_soon_as_nothing_can_save_it():
    """Rank 0 has still to write the forward that rank 1 waits for, and can only write it after its backward."""
    check(written("0F0 0B0\n1F0", (0, 1), 2), complete=False)
    rank, position, action, why = refused("0F0 0B0\n1F0 1F1", complete=False)
    assert (rank, position, action) == (1, 1, "forward of microbatch 1 on stage 1")
    assert why.startswith("waits for forward of microbatch 1 on stage 0, which on rank 0 comes after backward of")


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(3, 4), interleaved(2, 4), zb_h1(3, 4), zb_v(2, 4)])
def test_every_beginning_of_a_legal_schedule_is_legal_however_long_each_rank_is(schedule):
    chance = random.Random(0)
    for _ in range(20):
        rows = [row[: chance.randint(0, len(row))] for row in schedule.rows]
        check(Schedule(rows, schedule.placement, schedule.microbatches), complete=False)


# In memory


def test_the_limit_of_activations_on_a_rank():
    check(gpipe(2, 3), limit=3)
    with pytest.raises(IllegalSchedule, match="rank 0, position 2: forward of microbatch 2 on stage 0 is number 3 in"):
        check(gpipe(2, 3), limit=2)
    check(one_f_one_b(4, 9), limit=4)
    with pytest.raises(IllegalSchedule, match=r"rank 0, position 3.*number 4 in flight: at most 3 may be"):
        check(one_f_one_b(4, 9), limit=3)


def test_a_divided_backward_keeps_activations_until_its_second_part():
    row = written("0F0 0I0 0F1 0W0 0I1 0W1", (0,), 2).rows[0]
    assert most_in_flight(row) == 2
    assert most_in_flight([Action("F", 0, 0), Action("B", 0, 0), Action("F", 0, 1)]) == 1
    weighted = written("0F0 1F0 1B0 0F1 0B0", (0, 0), 2).rows[0]
    assert most_in_flight(weighted, [1.0, 5.0]) == 6 and most_in_flight(weighted, [5.0, 1.0]) == 10
    assert most_in_flight([]) == 0


# Against execution by rules of its own


def changed(schedule, chance):
    """A few random mistakes."""
    rows = [list(row) for row in schedule.rows]
    for _ in range(chance.randint(0, 3)):
        row = chance.choice(rows)
        if not row:
            continue
        k = chance.randrange(len(row))
        match chance.randrange(6):
            case 0:
                row.insert(chance.randint(0, len(row)), row.pop(k))
            case 1 | 2:
                del row[chance.randint(k, len(row)) :]
            case 3:
                row.insert(k, chance.choice(row))
            case 4:
                chance.choice(rows).append(row.pop(k))
            case 5:
                other = chance.randrange(len(row))
                row[k], row[other] = row[other], row[k]
    return Schedule(rows, schedule.placement, schedule.microbatches)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.booleans())
def test_it_accepts_what_can_be_executed_and_names_the_first_step_that_cannot(
    seed, ranks, chunks, microbatches, complete
):
    schedule = changed(drawn(seed, ranks, chunks, microbatches), random.Random(seed))
    try:
        check(schedule, complete=complete)
    except IllegalSchedule as error:
        assert not executable(schedule, complete)
        steps = sorted((position, rank) for rank, row in enumerate(schedule.rows) for position in range(len(row)))
        illegal = [n for n in range(1, len(steps) + 1) if not executable(beginning(schedule, steps[:n]), False)]
        if illegal:
            assert (error.position, error.rank) == steps[illegal[0] - 1]
            assert error.action == schedule.rows[error.rank][error.position]
        else:
            assert complete and error.why == "is missing" and error.action not in schedule.rows[error.rank]
    else:
        assert executable(schedule, complete)


def beginning(schedule, steps):
    rows = [[row[position] for position, of in steps if of == rank] for rank, row in enumerate(schedule.rows)]
    return Schedule(rows, schedule.placement, schedule.microbatches)


@settings(deadline=None)
@given(st.integers(0, 1 << 30))
def test_the_move_that_spoils_a_beginning_is_part_of_what_is_said(seed):
    """As in an editor: moves are tried one at a time, on any rank, and those that are refused taken back."""
    chance = random.Random(seed)
    schedule = Schedule([[], []], (0, 1), 3)
    for _ in range(12):
        rank = chance.randrange(2)
        move = Action(chance.choice("FFBIW"), rank, chance.randrange(3))
        schedule.rows[rank].append(move)
        try:
            check(schedule, complete=False)
        except IllegalSchedule as error:
            assert str(move) in str(error)
            schedule.rows[rank].pop()
            check(schedule, complete=False)
