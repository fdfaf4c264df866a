"""Shares of clients: Sheng et al. 2024. Their theorem bounds how far two who always wait can be apart."""

from dataclasses import replace
from random import Random

import pytest
from ledger import Ledger, continuation
from threeloops.product.batching import CHUNKED, CONTINUOUS, Engine, TokenCounters
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.request import Request, Sampling
from threeloops.simulation.clock import VirtualClock

SEATS, LONGEST = 4, 12


def engine_of(policy):
    return Engine(Ledger(64, 4), BlockManager(64, 4), replace(policy, max_running=SEATS, fair=True), VirtualClock())


def request(client, number, prompt, tokens):
    own = Random(f"{client} {number}").choices(range(997), k=prompt)
    return Request(f"{client}{number}", tuple(own), Sampling(max_tokens=tokens), 0.0, client=client)


def served(requests, client):
    """Service by the paper's weights, of whoever has got in."""
    mine = [each for each in requests if each.client == client and (each.running or each.finish)]
    return sum(len(each.prompt) + 2 * len(each.output) for each in mine)


@pytest.mark.parametrize("policy", [CHUNKED, CONTINUOUS], ids=["chunked", "continuous"])
def test_clients_who_always_wait_get_equal_service_however_much_they_ask_for(policy):
    random, engine, requests = Random(1), engine_of(policy), []
    for _ in range(120):
        for client, most in (("small", 3), ("large", LONGEST), ("large", LONGEST), ("large", LONGEST)):
            requests.append(request(client, len(requests), random.randint(1, most), random.randint(1, most)))
            engine.add(requests[-1])
    bound = 2 * max(LONGEST, 2 * SEATS * LONGEST)  # theorem 4.4, with everybody's output as what a batch can hold
    steps = 0
    while {"small", "large"} <= {each.client for each in engine.scheduler.waiting}:
        engine.step()
        steps += 1
        assert abs(served(requests, "small") - served(requests, "large")) <= bound
    assert steps > 100 and served(requests, "small") > 3 * bound
    engine.run()
    assert all(each.output == continuation(each.prompt, each.sampling.max_tokens) for each in requests)


def test_without_fairness_the_many_requests_of_one_client_go_first():
    waits = {}
    for fair in (False, True):
        engine = engine_of(CHUNKED)
        engine.scheduler.policy = replace(engine.scheduler.policy, fair=fair)
        flood = [request("flood", number, 4, 4) for number in range(40)]
        polite = request("polite", 0, 4, 4)
        engine.run([*flood, polite])
        waits[fair] = next(
            place for place, batch in enumerate(engine.executor.batches) if polite in [c.request for c in batch.chunks]
        )
    assert waits == {False: 40, True: 0}, "forty requests of four tokens on four seats"


def test_nobody_saves_up_service_by_being_away():
    counters = TokenCounters()
    counters.join("busy", [])
    counters.admit("busy", 100)
    counters.generate("busy", 50)
    counters.join("busy", [])
    assert counters.service("busy") == 200
    counters.join("back", ["busy"])
    assert counters.service("back") == 200, "lifted to the least of those who wait"
    counters.admit("back", 7)
    counters.join("back", ["back", "busy"])
    counters.join("third", ["back", "busy"])
    assert counters.service("back") == 207 and counters.service("third") == 200
    counters.join("fourth", [])
    assert counters.service("fourth") == 207, "nobody waits: the last who was admitted counts"


def test_who_had_more_than_those_who_wait_keeps_it():
    counters = TokenCounters()
    counters.join("a", [])
    counters.admit("a", 10)
    counters.join("b", ["a"])
    counters.admit("b", 100)
    counters.join("b", ["a"])
    assert (counters.service("a"), counters.service("b")) == (10, 110)


def test_weights_are_those_of_the_paper_unless_others_are_given():
    counters, dear = TokenCounters(), TokenCounters(prompt=3, output=5)
    for each in (counters, dear):
        each.admit("a", 10)
        each.generate("a", 10)
    assert (counters.service("a"), dear.service("a")) == (30, 80)


def test_tokens_from_the_prefix_cache_and_those_computed_again_are_free():
    engine = engine_of(CHUNKED)
    prompt = tuple(range(8))
    engine.run([Request("a0", prompt, Sampling(max_tokens=1), client="a")])
    engine.run([Request("b0", prompt, Sampling(max_tokens=1), client="b")])
    assert engine.scheduler._counters.service("a") == 8 + 2
    assert engine.scheduler._counters.service("b") == 10 + 4 + 2, "lifted to a's, then four of eight tokens computed"


def test_a_preempted_client_does_not_pay_for_the_same_prompt_twice():
    engine = Engine(Ledger(4, 4), BlockManager(4, 4), replace(CHUNKED, fair=True), VirtualClock())
    first, second = request("a", 0, 7, 9), request("b", 0, 7, 3)
    engine.run([first, second])
    assert second.preemptions == 1
    assert [engine.scheduler._counters.service(client) for client in "ab"] == [7 + 2 * 9, 7 + 2 * 3]
