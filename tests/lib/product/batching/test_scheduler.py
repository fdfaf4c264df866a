"""What the scheduler decides, step by step, on examples small enough to follow."""

import math
from dataclasses import replace

import pytest
from ledger import Ledger, continuation
from threeloops.product.batching import (
    CHUNKED,
    CONTINUOUS,
    DYNAMIC,
    STATIC,
    Engine,
    Policy,
    block_keys,
    by_priority,
)
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.request import Finish, Phase, Request, Sampling
from threeloops.simulation.clock import VirtualClock


def engine_of(policy=CHUNKED, blocks=100, block_size=4, accept=lambda request, guesses: 0):
    return Engine(Ledger(blocks, block_size, accept), BlockManager(blocks, block_size), policy, VirtualClock())


def request(name, prompt=5, tokens=4, at=0.0, **more):
    """A prompt of so many tokens that no other request has."""
    prompt = tuple(1000 * (1 + ord(name[0])) + place for place in range(prompt)) if isinstance(prompt, int) else prompt
    return Request(name, prompt, Sampling(max_tokens=tokens), at, **more)


def step(engine):
    """What a step computes: {id: tokens}."""
    return {chunk.request.id: chunk.count for chunk in engine.step().chunks}


def right(request):
    return continuation(request.prompt, request.sampling.max_tokens)


def test_a_prompt_is_computed_and_then_a_token_per_step():
    engine, one = engine_of(), request("a", prompt=5, tokens=3)
    engine.add(one)
    assert one.phase is Phase.WAITING
    assert step(engine) == {"a": 5} and one.phase is Phase.DECODE and one.computed == 5
    assert step(engine) == {"a": 1} and step(engine) == {"a": 1}
    assert one.phase is Phase.FINISHED and one.finish is Finish.LENGTH and one.output == right(one)
    assert step(engine) == {} and engine.scheduler.blocks.free == 100


def test_a_stop_token_ends_a_request_and_belongs_to_its_output():
    one = request("a", tokens=50)
    stop = right(one)[3]
    place = right(one).index(stop)
    one.sampling = Sampling(max_tokens=50, stop=frozenset({stop}))
    engine_of().run([one])
    assert one.finish is Finish.STOP and one.output == right(one)[: place + 1]


def test_chunked_prompts_take_what_decoding_leaves_of_the_budget():
    engine = engine_of(replace(CHUNKED, token_budget=8))
    engine.add(request("a", prompt=3))
    assert step(engine) == {"a": 3}
    engine.add(request("b", prompt=20))
    assert step(engine) == {"a": 1, "b": 7} and step(engine) == {"a": 1, "b": 7} and step(engine) == {"a": 1, "b": 6}
    assert step(engine) == {"b": 1}


def test_a_prompt_that_comes_first_in_order_leaves_a_token_for_each_who_decodes():
    engine = engine_of(replace(CHUNKED, token_budget=8, order=by_priority(1.0)))
    for name in "ab":
        engine.add(request(name, prompt=2, tokens=9, priority=5))
    step(engine)
    engine.add(request("p", prompt=13, priority=0))
    engine.add(request("q", prompt=9, priority=1))
    assert step(engine) == {"a": 1, "b": 1, "p": 6}
    assert step(engine) == {"p": 6, "a": 1, "b": 1}
    assert step(engine) == {"p": 1, "a": 1, "b": 1, "q": 5}
    assert step(engine) == {"p": 1, "q": 4, "a": 1, "b": 1}


def test_when_the_budget_is_smaller_than_those_who_decode_the_first_in_order_are_served():
    engine = engine_of(replace(CHUNKED, token_budget=2))
    for name in "abc":
        engine.add(request(name, prompt=1, tokens=3))
    assert step(engine) == {"a": 1, "b": 1} and step(engine) == {"a": 1, "b": 1} and step(engine) == {"a": 1, "b": 1}
    assert step(engine) == {"c": 1}


def test_continuous_batching_computes_prompts_whole_and_without_those_who_decode():
    engine = engine_of(replace(CONTINUOUS, token_budget=8))
    engine.add(request("a", prompt=3))
    step(engine)
    engine.add(request("b", prompt=4))
    engine.add(request("c", prompt=5))
    assert step(engine) == {"b": 4} and step(engine) == {"c": 5} and step(engine) == {"a": 1, "b": 1, "c": 1}
    engine.add(request("d", prompt=30))
    assert step(engine) == {"d": 30}, "a prompt above the budget has a step of its own"


def test_static_batching_waits_for_a_full_batch_and_nobody_joins_before_its_end():
    engine = engine_of(replace(STATIC, max_running=2))
    engine.add(request("a", tokens=1))
    assert step(engine) == {} and engine.scheduler.next_door() == math.inf
    engine.add(request("b", tokens=3))
    engine.add(request("c"))
    assert step(engine) == {"a": 5, "b": 5} and step(engine) == {"b": 1} and step(engine) == {"b": 1}
    assert step(engine) == {}
    engine.scheduler.draining = True
    assert step(engine) == {"c": 5}


@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
def test_a_batch_whose_prompts_need_several_steps_is_filled_before_its_door_shuts(chunked):
    engine = engine_of(replace(STATIC, max_running=3, token_budget=8, chunked=chunked))
    for name in "abc":
        engine.add(request(name, prompt=6, tokens=2))
    if chunked:
        assert [step(engine) for _ in range(3)] == [{"a": 6, "b": 2}, {"a": 1, "b": 4, "c": 3}, {"b": 1, "c": 3}]
    else:
        assert [step(engine) for _ in range(3)] == [{"a": 6}, {"b": 6}, {"c": 6}]
    engine.scheduler.draining = True
    engine.add(request("d"))
    assert "d" not in step(engine) and step(engine) == {"d": 5}


def test_who_comes_while_a_batch_is_filled_waits_for_the_next():
    engine = engine_of(replace(STATIC, max_running=4, token_budget=8))
    engine.scheduler.draining = True
    engine.add(request("a", prompt=6, tokens=3))
    engine.add(request("b", prompt=6, tokens=3))
    assert step(engine) == {"a": 6}
    engine.add(request("c", prompt=1))
    assert step(engine) == {"b": 6} and step(engine) == {"a": 1, "b": 1}


def test_a_batch_that_does_not_fit_into_the_cache_begins_without_the_rest_who_wait_for_the_next():
    engine = engine_of(replace(STATIC, max_running=3), blocks=4, block_size=4)
    for name, prompt, tokens in (("a", 3, 1), ("b", 3, 2), ("c", 9, 1)):
        engine.add(request(name, prompt, tokens))
    assert step(engine) == {"a": 3, "b": 3} and engine.scheduler.blocks.free == 3
    assert step(engine) == {"b": 1} and step(engine) == {}


def test_dynamic_batching_waits_for_a_full_batch_or_for_its_first_request_long_enough():
    engine = engine_of(replace(DYNAMIC, max_running=3, door_opens=0.5))
    engine.add(request("a", at=0.0, tokens=2))
    engine.clock.sleep_until(0.3)
    engine.add(request("b", at=0.3, tokens=2))
    assert step(engine) == {} and engine.scheduler.next_door() == 0.5
    engine.clock.sleep_until(0.5)
    assert step(engine) == {"a": 5, "b": 5} and engine.scheduler.next_door() == math.inf
    for name in "cde":
        engine.add(request(name, at=0.5))
    assert step(engine) == {"a": 1, "b": 1} and step(engine) == {"c": 5, "d": 5, "e": 5}


def test_a_preempted_member_of_a_batch_need_not_wait_for_the_next_one():
    engine = engine_of(replace(STATIC, max_running=2), blocks=5, block_size=2)
    first, second = request("a", prompt=3, tokens=6), request("b", prompt=3, tokens=6)
    engine.add(first)
    engine.add(second)
    while first.finish is None:
        step(engine)
    assert second.preemptions and step(engine) and second.running


def test_the_last_in_order_is_preempted_and_finds_its_prefix_again():
    engine = engine_of(blocks=4, block_size=4)
    first, second = request("a", prompt=7, tokens=9), request("b", prompt=7, tokens=3)
    engine.add(first)
    engine.add(second)
    step(engine)
    step(engine)  # both have 9 tokens, 8 of which are computed
    assert step(engine) == {"a": 1} and second.preemptions == 1 and second.phase is Phase.WAITING
    assert second.computed == 0 and second.block_table == [] and len(second.output) == 2
    engine.run()
    assert (first.output, second.output) == (right(first), right(second)) and second.preemptions == 1


def test_who_came_first_is_preempted_for_who_has_priority():
    engine = engine_of(replace(CHUNKED, order=by_priority(10.0)), blocks=4, block_size=4)
    low, high = request("l", prompt=7, tokens=9, priority=5), request("h", prompt=7, tokens=9)
    engine.add(low)
    step(engine)
    engine.add(high)
    engine.run()
    assert (low.preemptions, high.preemptions) == (1, 0)
    assert (low.output, high.output) == (right(low), right(high))


def test_of_equals_a_preempted_request_is_still_before_those_who_came_later():
    engine = engine_of(blocks=4, block_size=4)
    requests = [request(name, prompt=7, tokens=9) for name in "abc"]
    for each in requests:
        engine.add(each)
    engine.run()
    assert [each.token_times[-1] for each in requests] == sorted(each.token_times[-1] for each in requests)
    assert requests[1].preemptions and [each.place[-1] for each in requests] == [0, 1, 2]


def test_nobody_is_admitted_before_all_of_the_prompt_has_room():
    engine = engine_of(replace(CHUNKED, token_budget=4), blocks=4, block_size=4)
    engine.add(request("a", prompt=8, tokens=9))
    engine.add(request("b", prompt=9, tokens=1))
    assert [step(engine) for _ in range(3)] == [{"a": 4}, {"a": 4}, {"a": 1}]


def test_nobody_overtakes_who_does_not_fit_yet():
    engine = engine_of(blocks=4, block_size=4)
    engine.add(request("a", prompt=8, tokens=3))
    engine.add(request("b", prompt=12, tokens=1))
    engine.add(request("c", prompt=1, tokens=1))
    assert step(engine) == {"a": 8} and step(engine) == {"a": 1} and step(engine) == {"a": 1}
    assert step(engine) == {"b": 12, "c": 1}


def test_equal_prefixes_are_computed_once_and_the_last_token_always():
    engine = engine_of(block_size=4)
    first = request("a", prompt=tuple(range(8)), tokens=1)
    engine.run([first])
    same, longer, other = (request(name, prompt, 1) for name, prompt in (
        ("b", tuple(range(8))), ("c", (*range(8), 90)), ("d", (9, *range(1, 8)))))  # fmt: skip
    for each in (same, longer, other):
        engine.add(each)
    assert step(engine) == {"b": 4, "c": 1, "d": 8}
    assert [each.cached for each in (same, longer, other)] == [4, 8, 0]


def test_what_the_cache_had_of_a_prompt_is_what_it_had_at_the_first_admission():
    """A request that was preempted finds its own blocks again, which were not cached before it came."""
    engine = engine_of(block_size=4, blocks=8)
    requests = [request(name, prompt=tuple(range(start, start + 8)), tokens=16) for name, start in (("a", 0), ("b", 8))]
    engine.run(requests)
    late = requests[1]
    assert late.preemptions and late.cached > 0 and late.cached_first == 0


def test_sampling_has_no_part_in_a_prefix_and_salt_has():
    engine = engine_of(block_size=4)
    engine.run([request("a", prompt=tuple(range(8)), tokens=1)])
    warm = request("b", prompt=tuple(range(8)), tokens=1)
    warm.sampling = Sampling(max_tokens=1, temperature=2.0, seed=7)
    salted = request("c", prompt=tuple(range(8)), tokens=1, cache_salt="mine")
    engine.run([warm])
    engine.run([salted])
    engine.run([again := request("d", prompt=tuple(range(8)), tokens=1, cache_salt="mine")])
    assert (warm.cached, salted.cached, again.cached) == (4, 0, 4)


def test_without_the_prefix_cache_nothing_is_found():
    engine = engine_of(replace(CHUNKED, prefix_cache=False))
    engine.run([request("a", prompt=tuple(range(8)))])
    engine.run([again := request("b", prompt=tuple(range(8)))])
    assert again.cached == 0 and again.block_keys == []


def test_keys_are_those_of_full_blocks_and_depend_on_all_tokens_before():
    one, other = request("a", prompt=tuple(range(12))), request("b", prompt=(5, *range(1, 12)))
    keys, others = block_keys(one, 4, 11), block_keys(other, 4, 12)
    assert len(keys) == 2 and len(others) == 3 and len({*keys, *others}) == 5
    assert block_keys(request("c", prompt=(*range(8), 99)), 4, 9) == keys
    assert block_keys(one, 4, 3) == [] and len(block_keys(one, 4, 12)) == 3


def test_what_a_failed_request_wrote_is_not_found_again():
    engine = engine_of(replace(CHUNKED, token_budget=4), blocks=6)
    bad = request("a", prompt=tuple(range(12)))
    engine.add(bad)
    step(engine)  # a block is full, and could be found
    engine.executor.fails.add("a")
    step(engine)
    assert bad.finish is Finish.ERROR and bad.error == "a is not finite" and not engine.requests
    after = [request("b", prompt=tuple(range(12))), request("c", prompt=12)]
    engine.run(after)
    assert [each.cached for each in after] == [0, 0] and [each.output for each in after] == [
        right(each) for each in after
    ]


def test_who_shares_blocks_with_a_failed_request_goes_on():
    engine = engine_of()
    engine.run([request("a", prompt=tuple(range(8)), tokens=1)])
    bad, good = request("b", prompt=(*range(8), 1)), request("c", prompt=(*range(8), 2))
    engine.add(bad)
    engine.add(good)
    step(engine)
    assert len(set(good.block_table) & set(bad.block_table)) == 2
    engine.executor.fails.add("b")
    engine.run()
    assert bad.finish is Finish.ERROR and good.output == right(good)


def test_forks_share_all_blocks_until_they_write():
    engine = engine_of(block_size=4)
    parent = request("a", prompt=10, tokens=4)
    engine.add(parent)
    step(engine)
    forks = [Request(name, parent.prompt, Sampling(max_tokens=4)) for name in ("b", "c")]
    for fork in forks:
        engine.fork("a", fork)
    assert [fork.block_table for fork in forks] == [parent.block_table] * 2 and 100 - engine.scheduler.blocks.free == 3
    batch = engine.step()
    assert {chunk.request.id: (chunk.start, chunk.count) for chunk in batch.chunks} == {
        "a": (10, 1), "b": (9, 1), "c": (9, 1),
    }  # fmt: skip
    assert len(batch.copies) == 2 and 100 - engine.scheduler.blocks.free == 5, "the last of the three keeps the block"
    engine.run()
    assert [each.output for each in (parent, *forks)] == [right(parent)] * 3


@pytest.mark.parametrize("why", ["finished", "waiting", "other tokens", "half computed", "no seat", "unknown"])
def test_a_fork_that_can_share_nothing_waits_like_anybody_else(why):
    engine = engine_of(replace(CHUNKED, max_running=1 if why == "no seat" else 9, token_budget=6))
    parent = request("a", prompt=5, tokens=1 if why == "finished" else 9)
    if why == "half computed":
        parent = request("a", prompt=12, tokens=9)
    if why != "unknown":
        engine.add(parent)
    if why != "waiting":
        step(engine)
    prompt = (*parent.prompt[:2], 7, *parent.prompt[3:]) if why == "other tokens" else parent.prompt
    fork = Request("b", prompt, Sampling(max_tokens=3))
    engine.fork("a", fork)
    assert fork in engine.scheduler.waiting and not fork.block_table and fork.computed == 0
    engine.run()
    assert fork.output == right(fork)


def test_guesses_have_room_in_budget_cache_and_answer_and_preempt_nobody():
    engine = engine_of(replace(CHUNKED, guesses=3, token_budget=6), blocks=4, accept=lambda request, guesses: guesses)
    engine.add(request("a", prompt=3, tokens=9))
    engine.step()
    (chunk,) = engine.step().chunks
    assert (chunk.count, chunk.guesses, len(chunk.request.output)) == (1, 3, 5)
    engine.add(request("b", prompt=3, tokens=9))
    assert [(chunk.count, chunk.guesses) for chunk in engine.step().chunks] == [(1, 3), (2, 0)]
    chunks = engine.step().chunks
    assert chunks[0].request.id == "b" and chunks[0].count == 1 and chunks[0].request.computed == 3
    engine.run()
    assert engine.scheduler.blocks.free == 4


def test_a_guess_leaves_a_token_for_everybody_who_comes_after():
    """By arrival a half-computed prompt stands between two who decode: "c" joined before it, out of fairness."""
    policy = replace(CHUNKED, guesses=2, token_budget=3, max_running=3, fair=True)
    engine = engine_of(policy, accept=lambda request, guesses: guesses)
    for each in (
        request("a", prompt=1, tokens=8, client="first"),
        request("b", prompt=3, tokens=1, client="first"),
        request("c", prompt=1, tokens=2, client="second"),
    ):
        engine.add(each)
    assert step(engine) == {"a": 1, "c": 1, "b": 1}
    assert step(engine) == {"a": 1, "b": 1, "c": 1}


def test_more_tokens_than_asked_for_are_dropped():
    engine = engine_of(replace(CHUNKED, guesses=5), accept=lambda request, guesses: guesses + 3)
    one = request("a", tokens=4)
    engine.executor._run = lambda chunk, written: (
        right(request("a", tokens=20))[len(one.output) :] if chunk.samples else ()
    )
    engine.run([one])
    assert one.output == right(one) and len(one.token_times) == 4


@pytest.mark.parametrize("aging", [0, -1.0, math.inf, math.nan])
def test_an_aging_that_is_none_is_named(aging):
    with pytest.raises(ValueError, match=f"aging = {aging!r}: expected a positive number of seconds"):
        by_priority(aging)


def test_priorities_go_first_and_age():
    engine = engine_of(replace(CHUNKED, max_running=1, order=by_priority(aging=10.0)))
    for name, priority, at in (("a", 0, 0.0), ("low", 3, 1.0), ("high", 0, 2.0), ("mid", 1, 3.0), ("late", 0, 32.0)):
        engine.add(request(name, tokens=1, priority=priority, at=at))
    ran = []
    while engine.requests:
        ran += step(engine)
    assert ran == ["a", "high", "mid", "low", "late"], "30 seconds are worth 3 steps of priority"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_running": 0}, "max_running = 0: expected a whole number, at least 1"),
        ({"token_budget": 1.5}, "token_budget = 1.5"),
        ({"token_budget": 0}, "token_budget = 0"),
        ({"guesses": -1}, "guesses = -1: expected a whole number, at least 0"),
        ({"max_running": True}, "max_running = True"),
        ({"door_opens": -0.1}, "door_opens = -0.1: expected seconds"),
        ({"door_opens": math.nan}, "door_opens = nan"),
    ],
)
def test_a_limit_that_is_none_is_named(changes, said):
    with pytest.raises(ValueError, match=said):
        Policy(**changes)


def test_ids_are_those_of_unfinished_requests_and_a_request_is_used_once():
    engine = engine_of()
    one = request("a")
    engine.add(one)
    with pytest.raises(ValueError, match="'a' is here already"):
        engine.add(request("a"))
    with pytest.raises(ValueError, match="'a' is here already"):
        engine.fork("a", request("a"))
    engine.run()
    with pytest.raises(ValueError, match="'a' was used before and has 4 tokens of output"):
        engine.add(one)
    engine.run([request("a")])


def test_run_computes_nothing_if_one_of_the_requests_is_refused():
    engine, good = engine_of(blocks=2), request("a")
    with pytest.raises(
        ValueError, match="'b': 5 tokens of prompt and max_tokens = 9 need a cache of 13 tokens; this one has 8"
    ):
        engine.run([good, request("b", tokens=9)])
    assert good.finish is Finish.CANCELLED and not engine.requests and not engine.executor.batches


def test_run_says_who_stands_in_its_way():
    engine, one = engine_of(), request("a")
    engine.add(one)
    engine.scheduler.pause(one)
    with pytest.raises(RuntimeError, match="1 requests are left .* 1 of them are paused"):
        engine.run()
    assert not engine.scheduler.draining


def test_an_executor_that_forgets_a_chunk_ends_everybody():
    engine, one = engine_of(), request("a")
    engine.executor.execute = lambda batch: []
    with pytest.raises(RuntimeError, match="0 results for 1 chunks"):
        engine.run([one])
    assert one.finish is Finish.ERROR and engine.scheduler.blocks.free == 100 and not engine.requests


def test_after_the_executor_failed_nothing_of_the_cache_is_used():
    engine = engine_of()
    engine.run([request("a", prompt=tuple(range(8)))])
    engine.executor.broken = OSError("bus")
    with pytest.raises(OSError):
        engine.run([request("b")])
    engine.executor.broken = None
    engine.run([again := request("c", prompt=tuple(range(8)))])
    assert again.cached == 0 and again.output == right(again)


def test_who_is_cancelled_while_the_step_runs_gets_no_token_and_its_name_may_be_used_again():
    engine = engine_of()
    one, other, new = request("a"), request("b"), request("a")
    engine.add(one)
    engine.add(other)
    execute = engine.executor.execute

    def cancel_during(batch):
        results = execute(batch)
        if one.finish is None:
            engine.cancel("a")
            engine.add(new)
        return results

    engine.executor.execute = cancel_during
    engine.step()
    assert one.output == [] and one.finish is Finish.CANCELLED and engine.requests["a"] is new
    engine.run()
    assert (other.output, new.output) == (right(other), right(new))


def test_a_cache_moves_from_one_engine_to_another():
    """The first computes the prompt and keeps its blocks until they have been read. The second gets its first token."""
    prefill, decode = engine_of(block_size=4), engine_of(block_size=4)
    first = request("a", prompt=9, tokens=1, keeps_blocks=True)
    prefill.run([first])
    assert first.finish is Finish.LENGTH and prefill.scheduler.held == [first] and prefill.scheduler.blocks.free == 97
    moved = request("a", prompt=9, tokens=3)
    assert decode.reserve(moved) and decode.scheduler.blocks.free == 97 and moved.phase is Phase.WAITING
    assert step(decode) == {}, "its keys and values are not here yet"
    decode.executor.receive(moved)
    decode.receive("a", first.output[0])
    prefill.release(first)
    prefill.release(first)  # once is enough, and twice does no harm
    assert step(decode) == {"a": 1} and step(decode) == {"a": 1}
    assert moved.output == right(moved) and moved.finish is Finish.LENGTH
    assert prefill.scheduler.blocks.free == decode.scheduler.blocks.free == 100


def test_only_blocks_that_the_prefix_cache_lacks_have_to_move():
    engine, prompt = engine_of(block_size=4), tuple(range(10))
    engine.run([request("a", prompt=prompt, tokens=1)])
    moved, whole = request("b", prompt=prompt, tokens=2), request("c", prompt=prompt[:8], tokens=2)
    assert engine.reserve(moved) and moved.cached == moved.cached_first == 8
    assert engine.reserve(whole) and whole.cached == 8, "all of it: nothing has to be sent"
    engine.receive("c", right(whole)[0])
    assert step(engine) == {"c": 1} and whole.output == right(whole)


def test_no_blocks_are_reserved_without_room_or_before_a_preempted_request():
    engine = engine_of(replace(CHUNKED, max_running=2), blocks=5, block_size=4)
    with pytest.raises(ValueError, match="need a cache of 21 tokens; this one has 20"):
        engine.reserve(request("a", prompt=21, tokens=1))
    one, two = request("b", prompt=8, tokens=9), request("c", prompt=8, tokens=9)
    engine.add(one)
    engine.add(two)
    step(engine)
    assert not engine.reserve(request("d", prompt=1)), "both seats are taken"
    step(engine)
    assert two.preemptions == 1 and engine.scheduler.waiting == [two]
    assert not engine.reserve(request("d", prompt=1)), "the preempted request comes first"
    engine.cancel("c")
    assert engine.reserve(request("d", prompt=8)) and not engine.reserve(request("e", prompt=1))
    assert engine.scheduler.blocks.free == 0


@pytest.mark.parametrize("phase", ["unknown", "waiting", "received"])
def test_only_a_reserved_request_can_be_received_and_only_once(phase):
    engine, one = engine_of(), request("a", tokens=3)
    if phase == "waiting":
        engine.add(one)
    elif phase == "received":
        engine.reserve(one)
        engine.receive("a", right(one)[0])
    with pytest.raises(ValueError, match="request 'a' waits for no keys and values"):
        engine.receive("a", right(one)[0])


def test_a_first_token_that_ends_a_request_frees_its_blocks():
    engine, one = engine_of(), request("a", tokens=1)
    engine.reserve(one)
    engine.receive("a", right(one)[0])
    assert one.finish is Finish.LENGTH and not engine.requests and engine.scheduler.blocks.free == 100


def test_blocks_that_nobody_releases_are_named():
    engine = engine_of(blocks=5, block_size=4)
    with pytest.raises(RuntimeError, match="1 requests are left .* 1 that ended keep their blocks: release those"):
        engine.run([request("a", prompt=12, tokens=1, keeps_blocks=True), request("b", prompt=12, tokens=1)])


def test_a_reserved_request_that_nobody_computes_is_named():
    engine = engine_of()
    engine.reserve(request("a"))
    with pytest.raises(RuntimeError, match="1 wait for keys and values: resume, receive or cancel"):
        engine.run()
    engine.cancel("a")
    assert engine.scheduler.blocks.free == 100
