"""The two roles without processes: messages between them wait in queues, which a seed delivers in some order.

In every run each request must end as it does in one engine alone, or with an error, or be cancelled. At the end both
caches are empty.
"""

import random
from collections import deque
from dataclasses import replace

import msgspec
import pytest
from decoding import random_model
from threeloops.product.batching import CHUNKED, Engine, by_arrival, by_priority
from threeloops.product.decode import BlockManager, ModelRunner
from threeloops.product.disaggregated.real.decode import DecodeRole
from threeloops.product.disaggregated.real.messages import (
    Blocks,
    CacheFormat,
    HandoverError,
    HasRead,
    Hello,
    Progress,
    Received,
    Reserve,
    Reserved,
    Welcome,
)
from threeloops.product.disaggregated.real.prefill import HANDOVERS, PrefillRole
from threeloops.product.disaggregated.real.process import _role_state
from threeloops.product.disaggregated.real.service import _orphans, _twice
from threeloops.product.request import Request, Sampling
from threeloops.product.service.engine.messages import Finished, Submit

MODEL = random_model()
BLOCK = 4
FORMAT = CacheFormat(1, "", 2, 2, 8, BLOCK, "float64")
SAMPLINGS = [
    Sampling(max_tokens=7),
    Sampling(max_tokens=1),
    Sampling(max_tokens=9, temperature=0.9, seed=3),
    Sampling(max_tokens=6, temperature=1.5, seed=5, top_k=9, top_p=0.9, min_p=0.01),
    Sampling(max_tokens=8, repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.2),
    Sampling(max_tokens=12, temperature=2.0, seed=11, stop=frozenset(range(0, 61, 3))),
    Sampling(max_tokens=12, temperature=2.0, seed=12, stop=frozenset(range(0, 61, 2)), min_tokens=4),
    Sampling(max_tokens=5, logit_bias=((7, 4.0), (9, 5.0)), logprobs=3),
    Sampling(max_tokens=5, logprobs=0, prompt_logprobs=2, temperature=0.5, seed=1),
]


def engine_of(blocks, model=MODEL, budget=16, **policy):
    runner = ModelRunner(model, blocks, BLOCK)
    return Engine(runner, BlockManager(blocks, BLOCK), replace(CHUNKED, token_budget=budget, **policy)), runner.cache


def alone(submitted, model=MODEL):
    """The request of one engine that computes nothing else."""
    engine, _ = engine_of(64, model)
    request = Request("alone", submitted.prompt, submitted.sampling)
    engine.run([request])
    return request


class Pair:
    """Two roles, the queues between them, and a front."""

    def __init__(self, *, prefill=40, decode=40, handover="layers", model=MODEL, window=1000, **policy):
        self.sizes, self.handover, self.model = {"prefill": prefill, "decode": decode}, handover, model
        self.window, self.policy = window, policy
        self.outputs, self.logprobs, self.prompt_logprobs, self.outcomes = {}, {}, {}, {}
        self.messages, self.cached, self.log = {}, {}, []
        self.bytes = 0
        self.to_decode, self.to_prefill = deque(), deque()
        self.start("prefill")
        self.start("decode")
        self.connect()

    def start(self, role):
        engine, cache = engine_of(self.sizes[role], self.model, **self.policy)
        if role == "prefill":
            room = self.sizes["decode"] * BLOCK
            self.prefill = PrefillRole(engine, cache, self.tell, room=room, handover=self.handover)
        else:
            self.decode = DecodeRole(engine, cache, self.tell, window=self.window)
        self.block_bytes = cache.block_bytes * len(cache.layers)

    def connect(self):
        self.to_decode.clear()
        self.to_prefill.clear()
        self.decode.connected(lambda message, data: self.to_prefill.append(message))
        self.prefill.connected(self.sent)

    def sent(self, message, data):
        self.bytes += len(data)
        self.log.append(message)
        self.to_decode.append((message, bytearray(data)))

    def submit(self, number, prompt, sampling, **more):
        self.outputs[number], self.logprobs[number], self.prompt_logprobs[number] = [], [], []
        self.prefill.submit(Submit(number, tuple(prompt), sampling, **more))

    def tell(self, message):
        if message.number not in self.outputs or message.number in self.outcomes:
            return
        match message:
            case Progress():
                told = len(self.outputs[message.number]) - message.start
                assert told >= 0 and self.outputs[message.number][message.start :] == message.tokens[:told]
                self.outputs[message.number] += message.tokens[told:]
                self.logprobs[message.number] += message.logprobs[told:]
                if not message.start:
                    self.prompt_logprobs[message.number] = message.prompt_logprobs
                    self.cached[message.number] = message.cached
            case Finished():
                self.outcomes[message.number] = message.outcome
                self.messages[message.number] = message.message

    def cancel(self, number):
        self.outcomes.setdefault(number, "cancelled")
        self.prefill.cancel(number)
        self.decode.cancel(number)

    def deliver(self, to):
        if to == "decode" and self.to_decode:
            self.decode.hear(*self.to_decode.popleft())
        elif to == "prefill" and self.to_prefill:
            self.prefill.hear(self.to_prefill.popleft())

    def turn(self, act):
        match act:
            case "prefill":
                self.prefill.step()
            case "decode":
                self.decode.step()
            case "to prefill" | "to decode":
                self.deliver(act[3:])

    def lose(self, dead, delivered):
        """End the connection after so many more messages to each living side, and then start `dead` anew."""
        for to in {"prefill", "decode"} - {dead}:
            for _ in range(delivered):
                self.deliver(to)
        here = {"prefill": set(), "decode": set()}
        for role in {"prefill", "decode"} - {dead}:
            getattr(self, role).disconnected()
            here[role] = set(getattr(self, role).unfinished)
        told = {number: len(tokens) for number, tokens in self.outputs.items() if number not in self.outcomes}
        for number in _twice(told, here["prefill"], here["decode"]):
            self.prefill.cancel(number)
        for number in _orphans(told, here["prefill"], here["decode"]):
            self.outcomes[number] = "lost"
            self.prefill.cancel(number)
            self.decode.cancel(number)
        if dead is not None:
            self.start(dead)
        self.connect()

    def settle(self, most=3000, between=lambda: None):
        for _ in range(most):
            if self.outcomes.keys() == self.outputs.keys() and not self.to_decode and not self.to_prefill:
                return
            between()
            for act in ("prefill", "to decode", "to prefill", "decode"):
                self.turn(act)
        raise AssertionError(f"still open: {self.outputs.keys() - self.outcomes.keys()}")

    def check_empty(self):
        for role in (self.prefill, self.decode):
            state = _role_state(role.engine)
            assert not state.fault and state.blocks_free == state.blocks_total, state
            assert not role.engine.requests and not role.unfinished
        assert not self.decode._arrivals and not self.decode._asked


def close(ours, theirs):
    """Whether log-probabilities are equal, but for the order of sums in float64."""
    flat = [[(each.logprob, *(value for _, value in each.top)) for each in side] for side in (ours, theirs)]
    return len(ours) == len(theirs) and all(x == pytest.approx(y, abs=1e-9) for x, y in zip(*flat, strict=True))


def check_right(pair, asked):
    for number, submitted in asked.items():
        right = alone(submitted, pair.model)
        outcome, output = pair.outcomes[number], pair.outputs[number]
        if outcome in ("stop", "length"):
            assert (outcome, output) == (right.finish.value, right.output), number
            assert close(pair.logprobs[number], right.logprobs)
            assert close(pair.prompt_logprobs[number], right.prompt_logprobs)
        else:
            assert outcome in ("cancelled", "lost") and output == right.output[: len(output)], (number, outcome)


@pytest.mark.parametrize("handover", HANDOVERS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: str(SAMPLINGS.index(sampling)))
def test_a_request_ends_as_in_one_engine(handover, sampling):
    pair, prompt = Pair(handover=handover, budget=10), [(7 * place) % 61 for place in range(37)]
    pair.submit(1, prompt, sampling)
    pair.settle()
    check_right(pair, {1: Submit(1, tuple(prompt), sampling)})
    blocks = -(-len(prompt) // BLOCK)
    if len(pair.outputs[1]) > 1 or sampling.max_tokens == 1:
        assert pair.bytes == (sampling.max_tokens > 1) * blocks * pair.block_bytes
    pair.check_empty()


def test_two_caches_that_wait_for_each_other_are_noticed():
    """The decode side keeps its blocks for a prompt that the prefill side cannot compute, because there the blocks hold
    a prompt that was computed first and for which the decode side has no room."""
    pair = Pair(prefill=4, decode=4, order=by_priority(1.0))
    asked = {number: Submit(number, (number,) * 9, Sampling(max_tokens=4), priority=5) for number in range(4)}
    asked[4] = Submit(4, (9,) * 9, Sampling(max_tokens=4), priority=0)
    for number, submitted in asked.items():
        pair.submit(number, submitted.prompt, submitted.sampling, priority=submitted.priority)
    pair.prefill.step()
    assert [len(pair.outputs[number]) for number in asked] == [0, 0, 0, 0, 1]
    pair.deliver("decode")
    pair.decode.step()
    assert _role_state(pair.decode.engine).receiving == 1 and _role_state(pair.prefill.engine).held == 1
    pair.settle()
    check_right(pair, asked)
    pair.check_empty()


def test_blocks_are_reserved_for_a_few_prompts_ahead():
    pair = Pair(budget=5)
    for number in range(9):
        pair.submit(number, range(number, number + 9), SAMPLINGS[number % 2])
    pair.prefill.step()
    assert [message.request.number for message in pair.log] == [0, 2, 4, 6], "the others need one token and no blocks"


def test_only_blocks_that_the_other_side_lacks_are_sent_and_what_counts_as_cached_is_the_first_sides():
    pair, prompt = Pair(), tuple(range(30))
    for number, blocks in [(1, 8), (2, 1)]:
        before = pair.bytes
        pair.submit(number, prompt, SAMPLINGS[0])
        pair.settle()
        assert pair.bytes - before == blocks * pair.block_bytes
    pair.lose("decode", 0)
    before = pair.bytes
    pair.submit(3, prompt, SAMPLINGS[0])
    pair.settle()
    assert pair.bytes - before == 8 * pair.block_bytes, "the new decode side has nothing"
    assert pair.cached == {1: 0, 2: 28, 3: 28}
    check_right(pair, {number: Submit(number, prompt, SAMPLINGS[0]) for number in (1, 2, 3)})


@pytest.mark.parametrize(
    ("tokens", "prefill", "decode", "is_twice", "is_orphan"),
    [
        (0, True, False, False, False),  # it waits, or is computed
        (1, True, False, False, False),  # its first token is there, and the other side has died
        (1, True, True, True, False),  # the acknowledgement was lost
        (5, False, True, False, False),
        (5, True, False, False, True),  # its tokens came from a side that has died, before the acknowledgement
        (5, False, False, False, True),
        (0, False, False, False, True),
    ],
)
def test_which_requests_end_with_an_error_when_a_connection_has_ended(tokens, prefill, decode, is_twice, is_orphan):
    told, here = {7: tokens}, ({7, 8} if prefill else {8}, {7, 9} if decode else {9})
    assert _twice(told, *here) == ({7} if is_twice else set())
    assert _orphans(told, *here) == ({7} if is_orphan else set())


def blocks_of(pair):
    """Prompt 1 is computed, and its blocks and its first token are on their way."""
    pair.submit(1, range(10), SAMPLINGS[7])
    pair.prefill.step()
    pair.deliver("decode")
    pair.decode.step()
    pair.deliver("prefill")
    return [message for message, _ in pair.to_decode]


WRONG = {
    "a layer that there is not": (lambda m: replaced(m[0], layer=2, layers=1), "layers 2 to 2; it has 3 blocks in 2"),
    "a block that there is not": (lambda m: replaced(m[0], first=1), "blocks 1 to 3 in layers 0 to 1; it has 3 blocks"),
    "a hole": (lambda m: replaced(m[0], first=1, count=2), "block 1 in layer 0 follows 0 blocks: expected block 0"),
    "too few bytes": (lambda m: replaced(m[0], layers=1), "6144 bytes for 3 blocks in 1 layers: expected 3072"),
    "a block is missing": (lambda m: m[-1], "without block 0 of layer 0: expected 3 blocks in each layer"),
    "asked twice": (lambda m: Reserve(Submit(1, (1,), SAMPLINGS[0])), "its blocks were asked for twice"),
    "a greeting": (lambda m: Hello(FORMAT, 1), "Hello after the connection was made"),
}  # fmt: skip


def replaced(message, **changes):
    return msgspec.structs.replace(message, **changes)


@pytest.mark.parametrize("case", WRONG)
def test_a_message_that_makes_no_sense_is_refused_and_costs_no_block(case):
    pair = Pair(handover="whole")
    make, words = WRONG[case]
    message = make(blocks_of(pair))
    with pytest.raises(HandoverError, match=words):
        pair.decode.hear(message, pair.to_decode[0][1])
    pair.lose(None, 0)
    pair.settle()
    check_right(pair, {1: Submit(1, tuple(range(10)), SAMPLINGS[7])})
    pair.check_empty()


@pytest.mark.parametrize("answer", [Received(1), Reserved(1, 4), Reserved(1, -1), Welcome()], ids=str)
def test_an_answer_that_makes_no_sense_is_refused(answer):
    pair = Pair(handover="whole")
    pair.submit(1, range(10), SAMPLINGS[0])
    pair.prefill.step()
    with pytest.raises(HandoverError):
        pair.prefill.hear(answer)


def test_a_handover_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="handover = 'late': expected one of whole, chunks, layers"):
        Pair(handover="late")


@pytest.mark.parametrize("handover", HANDOVERS)
def test_when_blocks_leave(handover):
    """A prompt of 41 tokens is computed in steps of 15. Its 11 blocks have 4 tokens each, in 2 layers."""
    pair = Pair(handover=handover, budget=15)
    pair.submit(1, range(41), SAMPLINGS[0])
    sent = []
    for _ in range(3):
        pair.log.clear()
        pair.prefill.step()
        pair.deliver("decode")
        pair.decode.step()
        pair.deliver("prefill")
        blocks = [message for message in pair.log if isinstance(message, Blocks)]
        sent.append([(each.first, each.count, each.layer, each.layers) for each in blocks])
    right = {
        "whole": [[], [], [(0, 11, 0, 2)]],
        "chunks": [[(0, 3, 0, 2)], [(3, 4, 0, 2)], [(7, 4, 0, 2)]],
        "layers": [[(0, 3, 0, 2)], [(3, 4, 0, 1), (3, 4, 1, 1)], [(7, 4, 0, 1), (7, 4, 1, 1)]],
    }
    assert sent == right[handover], "the first step began before its blocks were reserved"


def chaos(seed):
    """A run in which anything may happen at any time."""
    rng = random.Random(seed)
    pair = Pair(
        prefill=rng.choice([9, 12, 40]),
        decode=rng.choice([10, 14, 40]),
        handover=rng.choice(HANDOVERS),
        budget=rng.choice([5, 16, 64]),
        max_running=rng.choice([1, 2, 8]),
        window=rng.choice([1, 2, 1000]),
        order=rng.choice([by_arrival, by_priority(1.0)]),
    )
    asked = {}
    beginning = [rng.randrange(61) for _ in range(16)]

    def catch_up():
        for number, output in pair.outputs.items():
            pair.decode.read(HasRead(number, len(output)))

    for _ in range(rng.choice([100, 200])):
        left = sorted(pair.outputs.keys() - pair.outcomes.keys())
        match rng.choices(["turn", "submit", "cancel", "read", "lose"], [40, 3, 1, 4, 0.6])[0]:
            case "turn":
                pair.turn(rng.choice(["prefill", "decode", "to prefill", "to decode"]))
            case "submit":
                number = len(asked)
                prompt = beginning[: rng.choice([0, 8, 16])] + [rng.randrange(61) for _ in range(rng.randint(1, 11))]
                more = {"priority": rng.randrange(3), "cache_salt": rng.choice(["", "a"])}
                asked[number] = Submit(number, tuple(prompt), rng.choice(SAMPLINGS), **more)
                pair.submit(number, prompt, asked[number].sampling, **more)
            case "cancel" if left:
                pair.cancel(rng.choice(left))
            case "read":
                catch_up()
            case "lose":
                pair.lose(rng.choice([None, "prefill", "decode"]), rng.randrange(9))
        assert not _role_state(pair.prefill.engine).fault
        assert not _role_state(pair.decode.engine).fault
    pair.settle(between=catch_up)
    check_right(pair, asked)
    pair.check_empty()
    return pair


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_request_ends_and_no_block_is_lost(seed):
    chaos(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_whatever_happens_often_every_request_ends_and_no_block_is_lost(seed):
    for part in range(40):
        chaos(40 * seed + part)
