"""Choose the tokens and requests of the next step: the whole policy of a serving engine, without a model.

The same scheduler runs in this machine's engine and in virtual time. Static and dynamic batching are continuous
batching with closed admission: nobody joins while a batch runs.
"""

import math
from collections.abc import Sequence
from itertools import count
from operator import attrgetter

from threeloops.product.batching.blocks import BlockManager
from threeloops.product.batching.fairness import TokenCounters
from threeloops.product.batching.policy import Policy
from threeloops.product.batching.prefix_cache import block_keys
from threeloops.product.request import Batch, Chunk, Finish, Phase, Request

__all__ = ["Scheduler"]

_PLACE = attrgetter("place")


class Scheduler:
    """Requests that are `waiting`, `running` or `paused`, and the blocks of those who run.

    Two more lists are for a cache that moves between engines. A `receiving` request has its blocks and waits for keys
    and values that another engine computes. A `held` one has ended, and another engine still has to read its blocks.
    """

    def __init__(self, blocks: BlockManager, policy: Policy):
        self.blocks = blocks
        self.policy = policy
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.paused: list[Request] = []
        self.receiving: list[Request] = []
        self.held: list[Request] = []
        self.draining = False  # nobody else will come: a batch need not wait to fill
        self._counters = TokenCounters()
        self._added = count()
        self._seats = 0  # that are still to be filled of a batch whose door has opened

    def add(self, request: Request) -> None:
        """Let a request wait. Raises ValueError, and leaves it alone, if it could never run."""
        self._require_room(request)
        request.place = *self.policy.order(request), next(self._added)
        self._counters.join(request.client, (other.client for other in self.waiting))
        self.waiting.append(request)

    def reserve(self, request: Request) -> bool:
        """Give a request a seat and the blocks of its prompt, which another engine computes. Returns False if there is
        no room now, or if a preempted request waits for it.

        `request.cached` tokens are here already, so only the blocks after them have to be sent. Raises the same as
        `add`.
        """
        self._require_room(request)
        if not self._has_seat or any(waiting.preemptions for waiting in self.waiting):
            return False
        prompt = len(request.prompt)
        self._take_prefix(request, prompt)
        if self._lacks(request, prompt - request.computed):
            self._give_up(request)
            return False
        self.blocks.grow(request.block_table, prompt)
        request.place = *self.policy.order(request), next(self._added)
        self._counters.join(request.client, (waiting.client for waiting in self.waiting))
        request.cached_first = request.cached
        self.receiving.append(request)
        return True

    def receive(self, request: Request, token: int, now: float) -> None:
        """Let a `receiving` request run, because its blocks now hold its prompt, of which `token` is the first
        output."""
        self.receiving.remove(request)
        request.computed = len(request.prompt)
        request.running = True
        self.running.append(request)
        self._name_full_blocks(request, 0)
        self._append(request, (token,), now)
        if request.finish is not None:
            self.end(request, request.finish)

    def release(self, request: Request) -> None:
        """Take the blocks of a `held` request back."""
        self.held.remove(request)
        self.blocks.release(request.block_table)

    def fork(self, request: Request, of: Request) -> None:
        """Add a request that shares the blocks of `of`, which runs, for several answers to one prompt.

        It joins at once. The first of them to write into their last shared block gets a copy. If there is no seat, or
        `of` does not hold the same tokens, the request waits like any other.
        """
        self.add(request)
        shared = request.length - 1  # the last token is computed again, for its logits
        same = of.running and shared <= of.computed and of.tokens[:shared] == request.tokens[:shared]
        if same and not request.lacks_prompt_logprobs and self._has_seat:
            blocks = -(-shared // self.blocks.block_size)
            request.block_table = self.blocks.fork(of.block_table[:blocks])
            request.computed = request.cached = shared
            self._seat(request)

    def schedule(self, now: float) -> Batch:
        """Choose the next step. If blocks run out, requests are preempted from the end of the order. The first request
        always runs, unless requests that are `receiving` or `held` have the blocks that it needs."""
        self.running.sort(key=_PLACE)
        chunks: list[Chunk] = []
        copies: list[tuple[int, int]] = []
        if self.policy.chunked:
            self._continue(chunks, copies)
            self._admit(chunks, now)
        else:
            self._admit(chunks, now)
            if not chunks:
                self._continue(chunks, copies)
        return Batch(tuple(chunks), tuple(copies))

    def update(self, batch: Batch, tokens: Sequence[Sequence[int]], now: float) -> None:
        """Take in the result of a step: for each chunk its new tokens, or none if it does not sample."""
        for chunk, new in zip(batch.chunks, tokens, strict=True):
            request = chunk.request
            if not request.running:  # cancelled or paused while the step ran
                continue
            self._append(request, new, now)
            full = request.computed // self.blocks.block_size
            request.computed = request.length - 1 if chunk.samples else chunk.start + chunk.count
            self._name_full_blocks(request, full)
            if request.finish is not None:
                self.end(request, request.finish)

    def end(self, request: Request, finish: Finish) -> None:
        """Remove a request, in any phase, and take its blocks back, unless it `keeps_blocks` and ended with a token.
        The prefix cache forgets what a failed request wrote."""
        request.finish = finish
        if finish is Finish.ERROR:
            self.blocks.forget(request.block_table)
        self._leave(request)
        if request.keeps_blocks and finish in (Finish.STOP, Finish.LENGTH):
            self.held.append(request)
        else:
            self.blocks.release(request.block_table)

    def pause(self, request: Request) -> None:
        """Give its seat and its blocks to others until `resume`."""
        self._leave(request)
        self._give_up(request)
        self.paused.append(request)

    def resume(self, request: Request) -> None:
        self.paused.remove(request)
        self.waiting.append(request)

    def next_door(self) -> float:
        """Return when admission opens by itself, in seconds on the arrivals' clock, or infinity if it does not."""
        if self.policy.door_opens is None or self.running or not self.waiting:
            return math.inf
        return min(request.arrival for request in self.waiting) + self.policy.door_opens

    @property
    def _has_seat(self) -> bool:
        return len(self.running) + len(self.receiving) < self.policy.max_running

    def _continue(self, chunks: list[Chunk], copies: list[tuple[int, int]]) -> None:
        """Chunks of those who run, best first."""
        budget = self.policy.token_budget
        for request in self.running:  # it can only lose members at its end
            if not budget:
                break
            later = len(self.running) - len(chunks) - 1  # who come after: a token is left for each
            tokens = min(request.uncomputed, max(1, budget - later))
            guesses = self._guesses(request, budget - tokens - later)
            if guesses and self._lacks(request, tokens + guesses):
                guesses = 0  # nobody is preempted for a guess
            while self._lacks(request, tokens):
                self._preempt(self.running[-1])
                if not request.running:
                    return
            copies += self.blocks.grow(
                request.block_table, request.computed + tokens + guesses, written=request.computed
            )
            chunks.append(Chunk(request, tokens, guesses))
            budget -= tokens + guesses

    def _guesses(self, request: Request, budget: int) -> int:
        if not self.policy.guesses or request.phase is not Phase.DECODE:
            return 0
        return max(0, min(self.policy.guesses, budget, request.sampling.max_tokens - len(request.output) - 1))

    def _lacks(self, request: Request, tokens: int) -> bool:
        """Return whether there are too few free blocks to compute this many tokens of the request."""
        needed = self.blocks.needed(request.block_table, request.computed + tokens, written=request.computed)
        return needed > self.blocks.free

    def _admit(self, chunks: list[Chunk], now: float) -> None:
        """Let those who wait join, best first, until budget, seats or blocks are used up, or the door is shut."""
        budget = self.policy.token_budget - sum(chunk.count + chunk.guesses for chunk in chunks)
        self.waiting.sort(key=_PLACE)
        while self.waiting and self._has_seat and budget > 0 and self._is_door_open(now):
            request = self._next_in_line()
            self._take_prefix(request, request.length - 1)  # the last token is always computed: it needs logits
            tokens = min(request.uncomputed, budget) if self.policy.chunked else request.uncomputed
            lacks = self._lacks(request, request.uncomputed)  # room for all of it: half a prompt helps nobody
            if lacks or (tokens > budget and chunks):  # a prompt above the budget gets a step of its own
                self._give_up(request)
                self._seats = 0 if lacks else self._seats
                return
            self.blocks.grow(request.block_table, request.computed + tokens)
            self._counters.admit(request.client, 0 if request.preemptions else len(request.prompt) - request.cached)
            self._seat(request)
            chunks.append(Chunk(request, tokens))
            budget -= tokens
            self._seats -= 1

    def _seat(self, request: Request) -> None:
        if request.cached_first is None:
            request.cached_first = request.cached
        request.running = True
        self.waiting.remove(request)
        self.running.append(request)

    def _next_in_line(self) -> Request:
        """The first in order; if the policy is fair, of the client who was served least."""
        if not self.policy.fair:
            return self.waiting[0]
        return min(self.waiting, key=lambda request: self._counters.service(request.client))

    def _is_door_open(self, now: float) -> bool:
        if self.policy.door_opens is None:
            return True
        if self.running:
            return self._seats > 0  # their prompts were too long for one step
        full = self.draining or len(self.waiting) >= self.policy.max_running
        interrupted = any(request.preemptions or request.output for request in self.waiting)  # of the last batch
        is_open = full or interrupted or now >= self.next_door()
        self._seats = min(self.policy.max_running, len(self.waiting)) if is_open else 0
        return is_open

    def _take_prefix(self, request: Request, tokens: int) -> None:
        """Start from the blocks of its first `tokens` tokens that the cache still has.

        A request that lacks log-probabilities of its prompt computes all of it, because each of them needs logits.
        """
        if self.policy.prefix_cache and not request.lacks_prompt_logprobs:
            keys = block_keys(request, self.blocks.block_size, tokens)
            request.block_table = self.blocks.fork(self.blocks.find(keys))
        request.computed = request.cached = len(request.block_table) * self.blocks.block_size

    def _name_full_blocks(self, request: Request, first: int) -> None:
        """Let the prefix cache find the computed blocks of a request, from number `first` on."""
        if self.policy.prefix_cache and request.computed // self.blocks.block_size > first:
            keys = block_keys(request, self.blocks.block_size, request.computed)
            for block, key in zip(request.block_table[first:], keys[first:], strict=False):
                self.blocks.name(block, key)

    def _append(self, request: Request, new: Sequence[int], now: float) -> None:
        """Add the new tokens, up to the one that ends the request."""
        self._counters.generate(request.client, len(new))
        for token in new:
            request.output.append(token)
            request.token_times.append(now)
            if token in request.sampling.stop:
                request.finish = Finish.STOP
            elif len(request.output) == request.sampling.max_tokens:
                request.finish = Finish.LENGTH
            if request.finish is not None:
                return

    def _require_room(self, request: Request) -> None:
        """Raises ValueError for a request that is longer than the whole cache."""
        longest = len(request.prompt) + request.sampling.max_tokens - 1  # the last token is never fed back
        if longest > (room := self.blocks.blocks * self.blocks.block_size):
            raise ValueError(
                f"request {request.id!r}: {len(request.prompt)} tokens of prompt and max_tokens = "
                f"{request.sampling.max_tokens} need a cache of {longest} tokens; this one has {room}: shorten the "
                "prompt, lower max_tokens, or give the cache more blocks"
            )

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        self._give_up(request)
        request.preemptions += 1
        self.waiting.append(request)

    def _leave(self, request: Request) -> None:
        for queue in (self.waiting, self.running, self.paused, self.receiving):
            if request in queue:
                queue.remove(request)
        request.running = False

    def _give_up(self, request: Request) -> None:
        """Blocks back, and everything to be computed again: with the prefix cache most of it is found there."""
        self.blocks.release(request.block_table)
        request.computed = request.cached = 0
