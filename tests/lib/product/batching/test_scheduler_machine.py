"""Whatever happens to an engine, in whatever order: hypothesis adds, steps, cancels, breaks, forks, pauses, drains, and
moves caches between engines.

The executor is a ledger that checks every slot of the cache that a step reads.
"""

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger import Ledger, continuation
from threeloops.product.batching import Engine, Policy, by_arrival, by_priority
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.request import Finish, Phase, Request, Sampling
from threeloops.simulation.clock import VirtualClock

policies = st.builds(
    Policy,
    max_running=st.integers(1, 6),
    token_budget=st.integers(1, 12),
    chunked=st.booleans(),
    prefix_cache=st.booleans(),
    door_opens=st.sampled_from([None, None, 0.0, 0.05, float("inf")]),
    fair=st.booleans(),
    guesses=st.integers(0, 3),
    order=st.sampled_from([by_arrival, by_priority(0.03)]),
)
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)  # two tokens: prefixes are often equal


class EngineMachine(RuleBasedStateMachine):
    @initialize(policy=policies, blocks=st.integers(1, 12), block_size=st.integers(1, 5), data=st.data())
    def open(self, policy, blocks, block_size, data):
        self.clock, self.manager = VirtualClock(), BlockManager(blocks, block_size)
        self.ledger = Ledger(blocks, block_size, lambda request, guesses: (request.length * 7) % (guesses + 1))
        self.engine = Engine(self.ledger, self.manager, policy, self.clock)
        self.names, self.all, self.seats = count(), [], 0

    def expected(self, request):
        return continuation(request.prompt, request.sampling.max_tokens, request.sampling.stop)

    def request(self, prompt, tokens, priority, client, salt, stops):
        stop = frozenset({2}) if stops else frozenset()
        return Request(
            f"r{next(self.names)}",
            prompt,
            Sampling(max_tokens=tokens, stop=stop),
            self.clock.now(),
            priority,
            client,
            salt,
        )

    @rule(
        prompt=prompts, tokens=st.integers(1, 9), priority=st.integers(0, 3), client=st.sampled_from("ab"),
        salt=st.sampled_from(["", "", "salt"]), stops=st.booleans(), keeps=st.booleans(),
    )  # fmt: skip
    def add(self, prompt, tokens, priority, client, salt, stops, keeps):
        request = self.request(prompt, tokens, priority, client, salt, stops)
        request.keeps_blocks = keeps
        before = (list(self.engine.scheduler.waiting), self.manager.free)
        room = self.manager.blocks * self.manager.block_size
        if len(prompt) + tokens - 1 > room:
            with pytest.raises(
                ValueError, match=f"need a cache of {len(prompt) + tokens - 1} tokens; this one has {room}"
            ):
                self.engine.add(request)
            assert before == (self.engine.scheduler.waiting, self.manager.free)
        else:
            self.engine.add(request)
            self.all.append(request)

    @precondition(lambda self: self.engine.requests)
    @rule(data=st.data(), tokens=st.integers(1, 9))
    def fork(self, data, tokens):
        of = data.draw(st.sampled_from(list(self.engine.requests.values())))
        prompt = data.draw(st.sampled_from([of.prompt, of.tokens]))
        request = self.request(prompt, tokens, of.priority, of.client, of.cache_salt, False)
        if len(prompt) + tokens - 1 <= self.manager.blocks * self.manager.block_size:
            self.engine.fork(of.id, request)
            self.all.append(request)

    @rule(times=st.integers(1, 6))
    def step(self, times):
        for _ in range(times):
            self.one_step()

    def one_step(self):
        scheduler, policy = self.engine.scheduler, self.engine.scheduler.policy
        waited, ran = list(scheduler.waiting), list(scheduler.running)
        decoding = [request for request in ran if request.phase is Phase.DECODE]
        service = {client: scheduler._counters.service(client) for client in "ab"}
        lengths = {request: len(request.output) for request in self.all}
        preemptions = {request: request.preemptions for request in self.all}
        batch = self.engine.step()
        self.clock.sleep_until(self.clock.now() + 0.01)
        chunks = {chunk.request: chunk for chunk in batch.chunks}
        assert len(chunks) == len(batch.chunks) <= policy.max_running
        uncut = not policy.chunked and len(chunks) == 1
        assert batch.tokens <= policy.token_budget or uncut

        def key(request):
            return *policy.order(request), request.place[-1]

        joined = [request for request in waited if request in chunks]
        left = [request for request in waited if request in scheduler.waiting]
        preempted = [request for request in ran if request.preemptions > preemptions[request]]
        stayed = [request for request in ran if request not in preempted]
        if policy.fair:
            for each in joined[:1] and left:
                first = min(service[request.client] for request in joined)
                assert first <= service[each.client] or key(each) > min(map(key, joined))
        elif joined and left:
            assert max(map(key, joined)) < min(map(key, left)), "who waits was overtaken"
        if preempted and stayed:
            assert max(map(key, stayed)) < min(map(key, preempted)), "the last in order is preempted first"
        if policy.door_opens is not None:
            self.seats = self.seats if ran else min(policy.max_running, len(waited))
            self.seats -= len(joined)
            assert self.seats >= 0, "somebody joined through a shut door"
        if policy.chunked and not preempted and policy.token_budget >= len(ran):
            assert set(decoding) <= chunks.keys(), "a prompt stalled somebody who decodes"
        if ran and not joined and not scheduler.receiving and not scheduler.held:
            assert min(stayed or ran, key=key) in chunks, "the first in order did not run"
        for request in chunks:
            if request.finish in (Finish.STOP, Finish.LENGTH):
                assert request.output == self.expected(request)
        for request, chunk in chunks.items():
            if request.finish is not Finish.ERROR and chunk.samples:
                assert 1 <= len(request.output) - lengths[request] <= 1 + chunk.guesses

    @rule(prompt=prompts, tokens=st.integers(1, 9), client=st.sampled_from("ab"), salt=st.sampled_from(["", "salt"]))
    def reserve(self, prompt, tokens, client, salt):
        request = self.request(prompt, tokens, 0, client, salt, False)
        room = self.manager.blocks * self.manager.block_size
        free = self.manager.free
        if len(prompt) + tokens - 1 > room:
            with pytest.raises(ValueError, match=f"this one has {room}"):
                self.engine.reserve(request)
        elif self.engine.reserve(request):
            assert request.cached % self.manager.block_size == 0 and request.cached <= len(prompt)
            assert len(request.block_table) == -(-len(prompt) // self.manager.block_size)
            self.all.append(request)
        else:
            assert not request.block_table and self.manager.free == free, "a refusal took blocks"

    @precondition(lambda self: self.engine.scheduler.receiving)
    @rule(data=st.data())
    def receive(self, data):
        """Another engine computed the prompt, and its blocks after the cached ones have been copied here."""
        request = data.draw(st.sampled_from(self.engine.scheduler.receiving))
        self.ledger.receive(request)
        self.engine.receive(request.id, self.expected(request)[0])
        assert request.running != (request.sampling.max_tokens == 1)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(self.all))
        before = request.finish
        self.engine.cancel(request.id)
        assert request.finish is (before or Finish.CANCELLED)

    @precondition(lambda self: self.engine.requests)
    @rule(data=st.data())
    def fail(self, data):
        self.ledger.fails.add(data.draw(st.sampled_from(list(self.engine.requests))))
        self.one_step()

    @precondition(lambda self: self.engine.scheduler.running)
    @rule()
    def break_the_executor(self):
        unfinished = list(self.engine.requests.values())
        self.ledger.broken = OSError("the device fell off the bus")
        with pytest.raises(OSError, match="bus"):
            while True:  # the first step may wait for a door
                self.engine.scheduler.draining = True
                self.engine.step()
        self.ledger.broken, self.engine.scheduler.draining = None, False
        self.ledger.slots = [None] * len(self.ledger.slots)  # a device that is back, empty
        assert {(each.finish, each.error) for each in unfinished} == {(Finish.ERROR, "the device fell off the bus")}
        assert not self.engine.requests and self.manager.free == self.manager.blocks

    @precondition(lambda self: self.engine.scheduler.running or self.engine.scheduler.waiting)
    @rule(data=st.data())
    def pause(self, data):
        scheduler = self.engine.scheduler
        scheduler.pause(data.draw(st.sampled_from(scheduler.running + scheduler.waiting)))

    @precondition(lambda self: self.engine.scheduler.paused)
    @rule()
    def resume(self):
        for request in list(self.engine.scheduler.paused):
            self.engine.scheduler.resume(request)

    @rule()
    def release(self):
        for request in self.all:
            self.ledger.require_prompt(request) if request in self.engine.scheduler.held else None
            self.engine.release(request)
        assert not self.engine.scheduler.held

    @rule()
    def drain(self):
        self.resume()
        self.release()
        for request in list(self.engine.scheduler.receiving):
            self.engine.cancel(request.id)
        unfinished = list(self.engine.requests.values())
        longest = max((len(each.prompt) + each.sampling.max_tokens + 1 for each in unfinished), default=0)
        bound = longest * len(unfinished) * (len(unfinished) + 1)
        self.engine.scheduler.draining = True
        while self.engine.requests:
            self.one_step()
            self.release()
            bound -= 1
            assert bound >= 0, "somebody starves"
        self.engine.scheduler.draining = False
        assert self.manager.free == self.manager.blocks

    @invariant()
    def nothing_is_lost_or_given_twice(self):
        if not hasattr(self, "engine"):
            return
        scheduler = self.engine.scheduler
        queues = [*scheduler.waiting, *scheduler.running, *scheduler.paused, *scheduler.receiving]
        assert len(set(queues)) == len(queues) and set(queues) == set(self.engine.requests.values())
        holding = [*scheduler.running, *scheduler.receiving, *scheduler.held]
        self.manager.check_integrity([request.block_table for request in holding])
        assert all(not request.block_table for request in self.all if request not in holding)
        assert len(scheduler.running) + len(scheduler.receiving) <= scheduler.policy.max_running
        assert all(request.keeps_blocks and request.finish is not None for request in scheduler.held)
        assert [request.running for request in scheduler.running] == [True] * len(scheduler.running)
        for request in self.all:
            if request.finish not in (Finish.STOP, Finish.LENGTH):
                assert request.output == self.expected(request)[: len(request.output)]
            assert (
                len(request.token_times) == len(request.output) and sorted(request.token_times) == request.token_times
            )

    def teardown(self):
        if hasattr(self, "engine"):
            self.drain()


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
