"""Who is computed in each step, and who holds which block: what the pictures of lab 16 show."""

import math
from dataclasses import replace

import pytest
from threeloops.lab.drawings.product.batches import _phases, block_maps, draw_block_map, draw_steps
from threeloops.product.batching import CHUNKED, CONTINUOUS, Engine, SimulatedExecutor
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.loadgen import Arrival, replay
from threeloops.simulation.clock import VirtualClock

ALONE = replace(CONTINUOUS, prefix_cache=False)


def run(arrivals, policy, blocks=64):
    """A second per step."""
    clock = VirtualClock()
    engine = Engine(SimulatedExecutor(clock, lambda step: 1.0), BlockManager(blocks, 4), policy, clock)
    return replay(engine, arrivals)


def test_phases_of_two_requests():
    found = _phases(run([Arrival(0.0, ((1, 4),), 3), Arrival(0.5, ((2, 4),), 2)], ALONE))
    assert found["0"] == [("waiting", 0, 0), ("prefill", 0, 1), ("decode", 2, 4)]  # in step 1 the other joins
    assert found["1"] == [("waiting", 0.5, 1), ("prefill", 1, 2), ("decode", 2, 3)]


def test_a_prompt_in_chunks_is_prefill_until_its_first_token():
    policy = replace(CHUNKED, prefix_cache=False, token_budget=2)
    assert _phases(run([Arrival(0.0, ((1, 5),), 2)], policy))["0"][1:] == [("prefill", 0, 3), ("decode", 3, 4)]


def test_a_preempted_request_waits_and_is_computed_again():
    arrivals = [Arrival(0.0, ((1, 4),), 9), Arrival(0.5, ((2, 4),), 9)]
    spans = _phases(run(arrivals, ALONE, blocks=4))["1"]
    assert [what for what, _, _ in spans] == ["waiting", "prefill", "decode", "preempted", "prefill", "decode"]
    assert all(start <= end for _, start, end in spans)
    assert all(before[2] <= after[1] for before, after in zip(spans, spans[1:], strict=False))


def test_block_maps_count_every_block_once():
    policy = replace(CHUNKED, prefix_cache=False)
    arrivals = [Arrival(0.0, ((1, 4),), 9), Arrival(2.5, ((2, 4),), 9)]
    maps = block_maps(arrivals, policy, 4, 4, lambda step: 1.0)
    assert maps[0].owners.count("0") == 1
    assert max(each.owners.count("0") for each in maps) == math.ceil(12 / 4)
    assert maps[-1].owners == ("",) * 4
    assert ("1" in maps[-1].preempted) and any(each.waiting == ("1",) for each in maps)


@pytest.mark.parametrize("policy", [ALONE, replace(CHUNKED, prefix_cache=False)])
def test_the_drawings_say_what_they_show(policy):
    arrivals = [Arrival(0.0, ((1, 4),), 3), Arrival(0.5, ((2, 4),), 2)]
    figure = draw_steps(run(arrivals, policy), "two requests")
    assert figure.axes[0].get_title(loc="left").startswith("two requests: all requests are served after")
    one = block_maps(arrivals, policy, 8, 4, lambda step: 1.0)[0]
    assert draw_block_map(one).axes[0].get_title(loc="left") == "1,000 ms: 7 of 8 blocks are free"
