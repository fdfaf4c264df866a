"""Routers of both pools: pure functions of what they see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.disaggregated import (
    DecodeState,
    PrefillState,
    fewest_running,
    least_cost,
    longest_prefix,
    most_room,
    round_robin,
    shortest_queue,
)

IDLE, BUSY, CACHED = PrefillState("a", 0), PrefillState("b", 9000), PrefillState("c", 3000, 2048)
EMPTY, FULL = DecodeState("a", 0, 900, 10), DecodeState("b", 7, 40, 10)
ROUTERS = [round_robin, shortest_queue, longest_prefix(), least_cost(1e-4), fewest_running, most_room]


def test_machines_take_turns():
    assert [round_robin([IDLE, BUSY, CACHED], 10, turn) for turn in range(5)] == [0, 1, 2, 0, 1]


def test_the_queue_is_counted_in_tokens():
    assert shortest_queue([BUSY, CACHED, IDLE], 4000, 0) == 2
    assert shortest_queue([BUSY, CACHED], 4000, 0) == 1


def test_equal_machines_take_turns():
    assert [shortest_queue([IDLE, IDLE, BUSY], 1, turn) for turn in range(4)] == [0, 1, 0, 0]
    assert [fewest_running([EMPTY, EMPTY, FULL], 1, turn) for turn in range(4)] == [0, 1, 0, 0]


def test_the_prefix_wins_unless_its_queue_is_too_far_ahead():
    assert longest_prefix(8192)([IDLE, BUSY, CACHED], 4000, 0) == 2
    assert longest_prefix(3000)([IDLE, BUSY, CACHED], 4000, 0) == 2, "exactly so many are allowed"
    assert longest_prefix(2999)([IDLE, BUSY, CACHED], 4000, 0) == 0
    store = PrefillState("d", 100, 0, loadable_tokens=2064)
    assert longest_prefix()([CACHED, store], 4000, 0) == 1, "blocks in the store count too"
    assert longest_prefix()([PrefillState("e", 500), PrefillState("f", 400)], 4000, 0) == 1, "no prefix: the queue"


def test_the_cost_adds_the_queue_the_load_and_the_rest():
    """At 1 ms a token: 4,000 tokens take 4 s on the idle machine, and 3 + 1.952 s on the one with a prefix."""
    route = least_cost(1e-3)
    assert route([IDLE, CACHED], 4000, 0) == 0
    nearer = PrefillState("c", 1500, 2048)
    assert route([IDLE, nearer], 4000, 0) == 1
    loads = PrefillState("d", 0, 0, loadable_tokens=2000, load_seconds=1.0)
    assert route([IDLE, loads], 4000, 0) == 1, "2 s for the rest, and 1 s to load"
    assert route([nearer, loads], 4000, 0) == 1, "3 s against 3.452 s"
    slow = PrefillState("e", 10, 0, loadable_tokens=2000, load_seconds=60.0)
    assert route([slow, PrefillState("f", 20)], 4000, 0) == 0, "computing is faster than loading, so nothing is loaded"


def test_decode_machines_are_compared_by_requests_or_by_room():
    many_short, few_long = DecodeState("a", 30, 800, 10), DecodeState("b", 3, 50, 10)
    assert fewest_running([many_short, few_long], 100, 0) == 1
    assert most_room([many_short, few_long], 100, 0) == 0


@pytest.mark.parametrize("router", ROUTERS)
def test_nobody_is_named(router):
    with pytest.raises(ValueError, match="no machine may take the request"):
        router([], 10, 0)


@given(queues=st.lists(st.integers(0, 50), min_size=1, max_size=6), turn=st.integers(0, 99))
def test_a_router_returns_a_place(queues, turn):
    prefill = [PrefillState(str(n), queue, queue % 7 * 16) for n, queue in enumerate(queues)]
    decode = [DecodeState(str(n), queue, 50 - queue, 1) for n, queue in enumerate(queues)]
    for router in ROUTERS[:4]:
        assert 0 <= router(prefill, 200, turn) < len(queues)
    for router in (round_robin, fewest_running, most_room):
        assert 0 <= router(decode, 200, turn) < len(queues)
    assert queues[shortest_queue(prefill, 200, turn)] == min(queues)


@pytest.mark.parametrize("make", [lambda: longest_prefix(-1), lambda: least_cost(0.0)])
def test_what_makes_no_sense_is_named(make):
    with pytest.raises(ValueError, match="expected a"):
        make()
