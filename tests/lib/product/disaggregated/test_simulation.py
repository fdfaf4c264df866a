"""A disaggregated deployment in virtual time: exact times by hand, the same engine without a split, failures, and what
must hold whatever happens."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.hardware import accelerator
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import CHUNKED, DYNAMIC, Engine, RooflineCost, SimulatedExecutor
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.disaggregated import (
    CacheShape,
    ComputedChunk,
    Deployment,
    Handover,
    Link,
    MachineFailure,
    Pool,
    RoleChanges,
    Tier,
    by_reuse_and_cost,
    fewest_running,
    least_cost,
    longest_prefix,
    lru,
    most_room,
    round_robin,
    shortest_queue,
    simulate,
    travel,
)
from threeloops.product.fleet import EngineModel, Fleet
from threeloops.product.fleet import round_robin as fleet_round_robin
from threeloops.product.fleet import simulate as simulate_fleet
from threeloops.product.loadgen import SLO, Arrival, conversations, poisson, replay, trace, uniform
from threeloops.product.request import Finish
from threeloops.simulation.clock import VirtualClock

SHAPE = CacheShape(4, 25.0)  # 100 bytes a token
LINK = Link(0.5, 1000.0)  # 10 tokens a second
ONE = replace(CHUNKED, token_budget=100, prefix_cache=False)


def cost(step) -> float:
    """10 ms a step and 1 ms a token: 20 tokens of prompt take 30 ms, a step of one answer 11 ms."""
    return 0.01 + 0.001 * step.tokens


def deployment(way="layers", prefill=1, decode=1, policy=ONE, link=LINK, blocks=100, **options) -> Deployment:
    handover = Handover(link, SHAPE, way)
    return Deployment(cost, handover, Pool(prefill, policy, blocks), Pool(decode, policy, blocks), 4, **options)


def arrival(at=0.0, prompt=20, output=5, seed=1) -> Arrival:
    return Arrival(at, ((seed, prompt),), output)


def check(run, arrivals) -> None:
    """Every request ends once, with all of its tokens in order or with an error."""
    wanted = sorted((each.at, each.prompt_length, each.max_tokens) for each in arrivals)
    assert sorted((each.arrival, len(each.prompt), each.sampling.max_tokens) for each in run.requests) == wanted
    for request in run.requests:
        assert len(request.output) == len(request.token_times) and request.token_times == sorted(request.token_times)
        assert all(request.arrival <= moment <= run.seconds for moment in request.token_times)
        if request.finish is Finish.LENGTH:
            assert len(request.output) == request.sampling.max_tokens and not request.error
            assert len(set(request.token_times)) == len(request.token_times)
        else:
            assert request.finish is Finish.ERROR and request.error
    for life in run.machines:
        assert 0 <= life.busy <= run.seconds + 1e-9
        assert [moment for moment, _ in life.roles] == sorted(moment for moment, _ in life.roles)


# One request.


@pytest.mark.parametrize("way", ["whole", "chunks", "layers"])
def test_alone_the_first_token_comes_after_the_prompt_and_the_second_after_the_transfer(way):
    run = simulate([arrival(at=3.0)], deployment(way))
    (journey,) = run.journeys
    exposed = travel([ComputedChunk(0.0, 0.03, 20)], Handover(LINK, SHAPE, way)).exposed
    first = 3.0 + 0.03
    assert journey.request.token_times == pytest.approx([first] + [first + exposed + 0.011 * n for n in range(1, 5)])
    assert journey.exposed == pytest.approx(exposed) and journey.bytes == 2000
    assert journey.messages == (4 if way == "layers" else 1)
    assert (journey.begun, journey.tries, journey.prefill, journey.decode) == (3.0, 1, "prefill-0", "decode-0")
    assert journey.placed == pytest.approx(first if way == "whole" else 3.0), "blocks are reserved before bytes leave"


def test_a_long_prompt_travels_while_its_next_chunk_is_computed():
    """50 tokens in chunks of 20, 20 and 10, on a link that sends 1,000 tokens a second."""
    policy = replace(ONE, token_budget=20)
    for way in ("whole", "chunks", "layers"):
        link = Link(0.0, 100_000.0)
        run = simulate([arrival(prompt=50)], deployment(way, policy=policy, link=link))
        chunks = [ComputedChunk(0, 0.03, 20), ComputedChunk(0.03, 0.06, 20), ComputedChunk(0.06, 0.08, 10)]
        assert run.journeys[0].exposed == pytest.approx(travel(chunks, Handover(link, SHAPE, way)).exposed)
        assert run.requests[0].token_times[0] == pytest.approx(0.08)
    assert run.journeys[0].exposed == pytest.approx(0.0025), "a layer of 10 tokens"


def test_an_answer_of_one_token_never_travels():
    run = simulate([arrival(output=1)], deployment())
    assert run.requests[0].token_times == pytest.approx([0.03])
    assert run.transferred == () and run.journeys[0].bytes == 0 and run.machines[1].steps == 0


def test_time_to_first_token_is_the_queue_and_the_prompt():
    """Five prompts of 60 tokens at once. The first begins alone, and the others share steps of 100 tokens."""
    run = simulate([arrival(prompt=60, seed=n) for n in range(5)], deployment())
    ends = [0.07, 0.18, 0.29, 0.29, 0.34]
    assert [request.token_times[0] for request in run.requests] == pytest.approx(ends)


def test_decoding_is_never_disturbed_by_a_prompt():
    """Its steps are as long as the number of answers says, however long the prompts are that come meanwhile."""
    arrivals = [arrival(prompt=10, output=50), *(arrival(0.05 * n, 90, 1, n) for n in range(1, 9))]
    fast = Link(0.0, 1e9)
    apart, together = (simulate(arrivals, deployment(prefill=n, link=fast)) for n in (1, 0))
    gaps = [b - a for a, b in zip(apart.requests[0].token_times, apart.requests[0].token_times[1:], strict=False)]
    assert gaps == pytest.approx([0.011] * 49, abs=1e-6)
    assert together.metrics().itl.p99 > 0.05


# Without a split it is the engine that there was before.


LOAD = trace(poisson(30, 3), 120, uniform(3, 60), uniform(1, 30), prefixes=3, prefix_length=21, seed=4)
BOTH = replace(CHUNKED, token_budget=48, max_running=12)


def test_one_machine_for_both_is_an_engine():
    clock = VirtualClock()
    done = replay(Engine(SimulatedExecutor(clock, cost), BlockManager(60, 4), BOTH, clock), LOAD)
    run = simulate(LOAD, deployment(prefill=0, policy=BOTH, blocks=60))
    assert any(request.preemptions for request in done.requests), "the cache is scarce"
    assert [request.token_times for request in run.requests] == [request.token_times for request in done.requests]


@pytest.mark.parametrize("policy", [BOTH, DYNAMIC])
def test_machines_for_both_are_a_fleet(policy):
    fleet = Fleet(EngineModel(cost, policy, 60, 4), replicas=3, router=fleet_round_robin)
    done = simulate_fleet(LOAD, fleet)
    run = simulate(LOAD, deployment(prefill=0, decode=3, policy=policy, blocks=60, decode_router=round_robin))
    ends = [(request.token_times[0], request.token_times[-1]) for request in run.requests]
    assert ends == [(outcome.first_token, outcome.end) for outcome in done.requests]


def test_a_prompt_that_waits_for_its_batch_begins_when_the_door_opens():
    (journey,) = simulate([arrival(at=3.0)], deployment(policy=replace(ONE, door_opens=0.5))).journeys
    assert journey.begun == pytest.approx(3.5) and len(journey.request.output) == 5


def test_short_prompts_stay_where_they_decode():
    arrivals = [arrival(prompt=19), arrival(prompt=20, seed=2)]
    short, long = simulate(arrivals, deployment(local_below=20)).journeys
    assert (short.prefill, short.decode, short.bytes) == ("", "decode-0", 0)
    assert (long.prefill, long.decode, long.bytes) == ("prefill-0", "decode-0", 2000)


# Room.


def test_a_prompt_waits_in_its_cache_until_a_decode_machine_has_room():
    """The decode machine has room for two prompts and their answers at a time."""
    small = replace(deployment("whole", link=Link(0.0, 1e9)), decode=Pool(1, ONE, 14))
    arrivals = [arrival(prompt=20, output=9, seed=n) for n in range(4)]
    run = simulate(arrivals, small)
    check(run, arrivals)
    ends = [journey.request.token_times[-1] for journey in run.journeys]
    placed = [journey.placed for journey in run.journeys]
    assert placed[2] >= min(ends[:2]) and placed[3] > placed[2]


def test_full_decode_machines_hold_up_the_prefill_machine():
    """Its blocks are kept until they are read, so the fourth prompt begins when the first answer ends."""
    held = replace(
        deployment("whole", link=Link(0.0, 1e9)), prefill=Pool(1, ONE, 10), decode=Pool(1, replace(ONE, max_running=1))
    )
    run = simulate([arrival(prompt=20, output=30, seed=n) for n in range(4)], held)
    firsts = [journey.begun for journey in run.journeys]
    assert max(firsts[:3]) < 0.1 and firsts[3] > 29 * 0.011


def test_links_are_shared_by_those_who_send_at_the_same_time():
    """Two prefill machines, one decode machine: its end of the network takes one cache after the other."""
    arrivals = [arrival(seed=1), arrival(seed=2)]
    one, two = simulate(arrivals, deployment("whole", prefill=2)).journeys
    assert (one.exposed, two.exposed) == pytest.approx((2.5, 4.5))
    other = simulate(arrivals, deployment("whole", prefill=2, decode=2)).journeys
    assert [journey.exposed for journey in other] == pytest.approx([2.5, 2.5])


def test_what_the_decode_machine_has_is_not_sent_again():
    """The second prompt begins with the same 20 tokens, five blocks, of which it has all in its prefix cache."""
    policy = replace(ONE, prefix_cache=True)
    arrivals = [arrival(), Arrival(10.0, ((1, 20), (2, 10)), 5)]
    for way in ("whole", "chunks", "layers"):
        first, second = simulate(arrivals, deployment(way, policy=policy)).journeys
        assert (first.bytes, second.bytes) == (2000, 1000)
        assert (first.cached_tokens, second.cached_tokens) == (0, 20)


def test_a_request_that_fits_nowhere_is_refused_and_the_others_go_on():
    arrivals = [arrival(prompt=401, output=1), arrival(prompt=390, output=20, seed=2), arrival(seed=3)]
    run = simulate(arrivals, deployment())
    check(run, arrivals)
    too_long, no_room, fine = run.requests
    assert "need a cache of 401 tokens; this one has 400" in too_long.error
    assert "409 tokens of prompt and answer" in no_room.error
    assert fine.finish is Finish.LENGTH and sorted(run.errors) == sorted([too_long.error, no_room.error])


# Routers and the store.


def test_prompts_go_to_the_shortest_queue_of_tokens_even_in_the_middle_of_a_step():
    arrivals = [arrival(0.0, 90), arrival(0.001, 30, seed=2), arrival(0.002, 30, seed=3), arrival(0.003, 30, seed=4)]
    run = simulate(arrivals, deployment(prefill=2, prefill_router=shortest_queue))
    assert [journey.prefill[-1] for journey in run.journeys] == ["0", "1", "1", "1"]
    turns = simulate(arrivals, deployment(prefill=2, prefill_router=round_robin))
    assert [journey.prefill[-1] for journey in turns.journeys] == ["0", "1", "0", "1"]


def test_a_prefix_router_computes_less():
    policy = replace(ONE, prefix_cache=True, token_budget=400)
    load = trace(poisson(8, 5), 80, uniform(5, 20), uniform(2, 8), prefixes=6, prefix_length=200, seed=6)
    common = {"policy": policy, "link": Link(0.0, 1e8), "blocks": 160, "prefill": 3}
    cached = {}
    for name, router in (("turns", round_robin), ("prefix", longest_prefix(2000)), ("cost", least_cost(0.001))):
        run = simulate(load, deployment(prefill_router=router, **common))
        check(run, load)
        cached[name] = sum(journey.cached_tokens for journey in run.journeys)
    assert cached["prefix"] > 1.3 * cached["turns"] and cached["cost"] > 1.3 * cached["turns"]


def test_a_block_is_loaded_from_the_store_if_that_is_faster_than_computing_it():
    """80 tokens take 80 ms. The cache of the machine has room for one prompt, so the other pushes it out."""
    policy = replace(ONE, prefix_cache=True)
    arrivals = [arrival(0.0, 81, 2, 1), arrival(5.0, 81, 2, 2), arrival(10.0, 81, 2, 1)]
    common = {"policy": policy, "link": Link(0.0, 1e8), "blocks": 21}
    ttft = {}
    for name, bandwidth in (("fast", 800_000.0), ("slow", 90_000.0)):
        run = simulate(arrivals, deployment(store=(Tier("host", 100, 0.002, bandwidth),), **common))
        check(run, arrivals)
        last = run.journeys[2]
        ttft[name] = last.request.token_times[0] - 10.0
        assert last.loaded_tokens == (80 if name == "fast" else 0)
    assert ttft["fast"] == pytest.approx(0.002 + 8000 / 800_000 + 0.011), "20 blocks loaded, a token computed"
    assert ttft["slow"] == pytest.approx(0.091)
    assert run.store.hits == [20] and run.store.misses == 40


def test_a_prompt_that_loses_its_blocks_gives_up_its_place_and_is_sent_again():
    """Blocks that are loaded for the fourth request take the room of the third, in the middle of its prompt."""
    policy = replace(ONE, prefix_cache=True, token_budget=8)
    arrivals = [arrival(0.0, 25, 2, 1), arrival(2.0, 45, 2, 9), arrival(5.0, 40, 2, 2), arrival(5.045, 25, 2, 1)]
    kind = deployment("chunks", policy=policy, link=Link(0.0, 1e8), store=(Tier("host", 100, 0.0, 2e5),))
    run = simulate(arrivals, replace(kind, prefill=Pool(1, policy, 12)))
    check(run, arrivals)
    third, fourth = run.journeys[2:]
    assert fourth.loaded_tokens == 24
    assert third.placed == pytest.approx(5.045 + 0.012), "again, as soon as the blocks have been loaded"
    assert third.bytes == 2400 + 4000, "three chunks, and then everything"
    assert third.request.token_times[0] == pytest.approx(5.054 + 0.003 + 2 * 0.018)


# Failures.


def test_a_prompt_begins_again_when_its_machine_fails():
    failure = MachineFailure(0.02, "prefill", restart=1.0)
    (journey,) = simulate([arrival()], deployment(failures=(failure,))).journeys
    assert journey.request.token_times[0] == pytest.approx(1.02 + 0.03) and journey.tries == 2


def test_the_step_of_a_machine_that_failed_is_over():
    """It is back at once, and computes 100 and 20 tokens of the prompt, as if the step had never begun."""
    failure = MachineFailure(0.05, "prefill", restart=0.0)
    run = simulate([arrival(prompt=120)], deployment(failures=(failure,)))
    assert run.requests[0].token_times[0] == pytest.approx(0.05 + 0.11 + 0.03)
    assert run.machines[0].busy == pytest.approx(0.19), "the rest of the first step is not computed"


def test_a_failure_during_the_transfer_costs_the_prompt_but_not_the_first_token():
    failure = MachineFailure(1.0, "prefill", restart=1.0)
    run = simulate([arrival()], deployment("whole", failures=(failure,)))
    (journey,) = run.journeys
    first, second = journey.request.token_times[:2]
    assert first == pytest.approx(0.03), "the client has it"
    assert second == pytest.approx(2.0 + 0.031), "a prompt of 21 tokens, of which the last was the first token"
    assert journey.bytes == 2000 + 2100 and len(journey.request.output) == 5


def test_a_cache_that_is_still_there_is_sent_to_another_decode_machine():
    failure = MachineFailure(1.0, "decode")
    (journey,) = simulate([arrival()], deployment("whole", decode=2, failures=(failure,))).journeys
    assert journey.tries == 1 and journey.decode == "decode-1" and journey.placed == 1.0
    assert journey.arrived == pytest.approx(2.03 + 2.5), "its link is busy with the first message until 2.03 s"
    assert journey.bytes == 4000


def test_an_answer_goes_on_where_its_client_is_when_its_machine_fails():
    """The prompt is computed again with the tokens that the client has, and no token comes twice."""
    arrivals = [arrival(output=40)]
    failure = MachineFailure(0.1, "decode", restart=0.5)
    run = simulate(arrivals, deployment(link=Link(0.0, 1e9), failures=(failure,)))
    check(run, arrivals)
    (journey,) = run.journeys
    before = [moment for moment in journey.request.token_times if moment <= 0.1]
    assert len(before) == 1 + int((0.1 - 0.03) / 0.011) and journey.tries == 2
    assert journey.request.token_times[len(before)] == pytest.approx(0.1 + 0.01 + 0.001 * (20 + len(before)))


def test_after_too_many_tries_there_is_an_error():
    failures = tuple(MachineFailure(moment, "prefill", restart=0.0) for moment in (0.01, 0.02, 0.03))
    run = simulate([arrival(), arrival(1.0, seed=2)], deployment(failures=failures, tries=3))
    assert run.requests[0].error == "prefill-0 failed, in try 3 of 3"
    assert run.requests[1].finish is Finish.LENGTH and run.machines[0].failures == 3


def test_without_prefill_machines_prompts_are_computed_where_they_decode():
    run = simulate([arrival(), arrival(5.0, seed=2)], deployment(failures=(MachineFailure(1.0, "prefill"),)))
    assert [journey.prefill for journey in run.journeys] == ["", ""]
    assert run.requests[1].token_times[0] == pytest.approx(5.03)


def test_without_decode_machines_everybody_gets_an_error():
    run = simulate([arrival(), arrival(5.0, seed=2)], deployment(failures=(MachineFailure(1.0, "decode"),)))
    assert [request.error for request in run.requests] == ["no decode machine is left"] * 2


def test_who_waits_for_room_on_the_last_decode_machine_gets_an_error_when_it_fails():
    one_seat = Pool(1, replace(ONE, max_running=1))
    kind = deployment("whole", link=Link(0.0, 1e9), failures=(MachineFailure(0.2, "decode"),), tries=1)
    run = simulate([arrival(output=50), arrival(output=50, seed=2)], replace(kind, decode=one_seat))
    assert run.errors == ["decode-0 failed, in try 1 of 1", "no decode machine is left"]


# Changes of roles.


def test_a_machine_changes_its_role_when_the_load_does_and_serves_again():
    """First long prompts and short answers, then short prompts and long answers."""
    arrivals = [arrival(0.06 * n, 90, 3, n) for n in range(120)]
    arrivals += [arrival(9 + 0.04 * n, 5, 80, 1000 + n) for n in range(300)]
    policy = replace(ONE, max_running=12)
    roles = RoleChanges(prefill=(0.1, 0.3), decode=(0.5, 0.9), period=0.5, pause=2.0, seconds=0.5)
    common = {"prefill": 1, "decode": 3, "policy": policy, "link": Link(0.0, 1e7), "blocks": 400}
    fixed = simulate(arrivals, deployment(**common))
    run = simulate(arrivals, deployment(roles=roles, **common))
    check(run, arrivals)
    changes = [(moment, life.name, role) for life in run.machines for moment, role in life.roles if moment and role]
    assert any(role == "prefill" for _, _, role in changes) and any(role == "decode" for _, _, role in changes)
    away = [
        life.roles[n + 1][0] - moment
        for life in run.machines
        for n, (moment, role) in enumerate(life.roles)
        if not role
    ]
    assert away == pytest.approx([0.5] * len(away)), "each change takes half a second"
    assert run.metrics().ttft.p90 < fixed.metrics().ttft.p90
    patient = simulate(arrivals, deployment(roles=replace(roles, pause=60.0), **common))
    moved = [life for life in patient.machines if len(life.roles) > 1]
    assert len(moved) == 1 and len(moved[0].roles) == 3, "the second change would come too soon after the first"


def test_between_the_marks_nothing_changes():
    roles = RoleChanges(prefill=(0.0, math.nextafter(math.inf, 0)), decode=(0.0, 10.0), period=0.1)
    run = simulate(LOAD, deployment(prefill=2, decode=2, policy=BOTH, link=Link(0.0, 1e6), roles=roles))
    assert all(len(life.roles) == 1 for life in run.machines)


# Whatever happens.


@given(data=st.data())
@settings(max_examples=40)
def test_every_request_ends_once_and_no_block_is_kept(data):
    """`simulate` itself checks at the end that every machine has all of its blocks back."""
    draw = data.draw
    machines = st.integers(1, 3)
    policy = replace(
        CHUNKED, token_budget=draw(st.sampled_from([7, 32, 200])), max_running=draw(st.integers(1, 9)),
        chunked=draw(st.booleans()), prefix_cache=draw(st.booleans()),
        door_opens=draw(st.sampled_from([None, None, 0.05])),
    )  # fmt: skip
    rate = draw(st.sampled_from([5.0, 40.0, 400.0]))
    load = trace(
        poisson(rate, 1), draw(st.integers(1, 40)), uniform(1, 30), uniform(1, 20),
        prefixes=draw(st.integers(0, 3)), prefix_length=13, seed=draw(st.integers(0, 9)),
    )  # fmt: skip
    failures = draw(
        st.lists(
            st.builds(
                MachineFailure, st.floats(0, 3), st.sampled_from(["prefill", "decode"]), st.integers(0, 3),
                st.sampled_from([0.0, 0.3, math.inf]),
            ), max_size=5,
        )
    )  # fmt: skip
    handover = Handover(
        Link(draw(st.sampled_from([0.0, 0.1])), draw(st.sampled_from([1e3, 1e5]))), SHAPE,
        draw(st.sampled_from(["whole", "chunks", "layers"])), draw(st.sampled_from([0.0, 0.001])),
        draw(st.integers(1, 4)),
    )  # fmt: skip
    kind = Deployment(
        cost, handover, Pool(draw(machines), policy, draw(st.integers(11, 60))),
        Pool(draw(machines), policy, draw(st.integers(16, 60))), 4,
        draw(st.sampled_from([round_robin, shortest_queue, longest_prefix(50), least_cost(0.001)])),
        draw(st.sampled_from([round_robin, fewest_running, most_room])), draw(st.sampled_from([0, 9])),
        draw(st.sampled_from([(), (Tier("host", 9, 0.0, 1e6), Tier("disk", 30, 0.001, 1e5))])),
        draw(st.sampled_from([lru, by_reuse_and_cost])),
        draw(st.sampled_from([None, RoleChanges((0.01, 0.02), (0.1, 0.3), 0.1, 0.2, 0.1)])),
        tuple(failures), draw(st.integers(1, 4)),
    )  # fmt: skip
    run = simulate(load, kind)
    check(run, load)
    if not failures:
        assert not [request.error for request in run.requests if request.error and "refused" not in request.error]
        if not policy.prefix_cache:
            sent = sum(len(journey.request.prompt) for journey in run.transferred)
            assert sum(journey.bytes for journey in run.journeys) == pytest.approx(sent * SHAPE.token_bytes)
    again = simulate(load, kind)
    assert repr(again.journeys) == repr(run.journeys)


# Two loads, on the same four machines.


LLAMA_8B = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
H100S = RooflineCost(LLAMA_8B, accelerator("H100"), reached=0.5, overhead=2e-3)
PREFILLS = replace(CHUNKED, token_budget=4096, prefix_cache=False)
DECODES = replace(CHUNKED, token_budget=512, max_running=128, prefix_cache=False)


def four(prefill, decode, decodes=DECODES):
    handover = Handover(Link(10e-6, 50e9), CacheShape.of(LLAMA_8B))
    return Deployment(H100S, handover, Pool(prefill, PREFILLS, 20_000), Pool(decode, decodes, 20_000))


def test_long_prompts_and_strict_gaps_are_served_best_apart():
    load = trace(poisson(9.0, 1), 100, uniform(3000, 6000), uniform(60, 140), seed=1)
    slo = SLO(ttft=0.8, tpot=0.014)
    apart = simulate(load, four(2, 2)).metrics(slo)
    small, large, whole = (
        simulate(load, four(0, 4, replace(DECODES, **limits))).metrics(slo)
        for limits in ({}, {"token_budget": 2048}, {"token_budget": 6000, "chunked": False})
    )
    assert apart.attainment > 0.9 and apart.attainment > small.attainment + 0.05
    assert small.attainment > large.attainment + 0.3 and large.attainment > whole.attainment
    assert 10 * apart.itl.p99 < whole.itl.p99 and 4 * apart.itl.p99 < large.itl.p99
    assert apart.itl.p99 < small.itl.p99 and apart.ttft.p90 > small.ttft.p90, "only two machines compute prompts"


def test_short_prompts_and_long_answers_are_served_best_together():
    load = trace(poisson(60.0, 2), 120, uniform(100, 300), uniform(100, 200), seed=2)
    slo = SLO(ttft=0.1, tpot=0.0115)
    apart, together = (simulate(load, four(*split)).metrics(slo) for split in ((2, 2), (0, 4)))
    assert together.attainment > 0.95 and apart.attainment < 0.5
    assert apart.tpot.p50 > 1.02 * together.tpot.p50, "half of the machines decode for all"


def test_turns_of_a_conversation_find_their_beginning():
    load = conversations(poisson(2, 1), 40, 4, 60, uniform(20, 40), uniform(5, 10), think=2.0, seed=3)
    policy = replace(ONE, prefix_cache=True, token_budget=400)
    kind = deployment(policy=policy, prefill=2, decode=2, link=Link(0.0, 1e6), blocks=400)
    near = simulate(load, replace(kind, prefill_router=longest_prefix()))
    far = simulate(load, replace(kind, prefill_router=round_robin))
    assert near.metrics().ttft.mean < far.metrics().ttft.mean
