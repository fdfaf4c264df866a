"""A disaggregated deployment in virtual time: prompts here, answers there, and their caches on the way.

All events are in one queue (`threeloops.simulation.clock.VirtualClock`), and nothing is random, so a run repeats
exactly. Each request ends exactly once, with all of its tokens or with an error, and at the end no machine keeps a
block.

1. A router gives the prompt to a prefill machine, whose engine computes it as a request for one token. The client gets
   this token at once. The blocks stay until they have been read.
2. A decode machine reserves blocks before anything is sent: at the first step of the prompt if its cache leaves in
   chunks or layers, and after the last step otherwise. If no machine has room, the prompt waits in the cache of its
   prefill machine, which thereby takes fewer prompts.
3. The blocks travel, except for those that the decode machine has in its own prefix cache.
4. The decode machine goes on with the answer. If it preempts the request later, it computes the prompt itself.

After a failure, a request whose cache is still complete on the prefill machine is sent to another decode machine. All
others begin again with their prompt and the tokens that their client has. A message to or from the failed machine
occupies the other end as long as it would have taken, because nobody notices earlier.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import get_args

from threeloops.product.batching.prefix_cache import block_keys
from threeloops.product.batching.simulated.steps import StepShape
from threeloops.product.disaggregated.delivery import Attempt, Delivery
from threeloops.product.disaggregated.description import Deployment, MachineFailure, Role
from threeloops.product.disaggregated.machine import Machine
from threeloops.product.disaggregated.policies import PoolLoad
from threeloops.product.disaggregated.record import DisaggregatedRun, Journey
from threeloops.product.disaggregated.store import SharedStore
from threeloops.product.disaggregated.transfer import ComputedChunk
from threeloops.product.loadgen.trace import Arrival, requests_of
from threeloops.product.request import Batch, Chunk, Finish, Request, Sampling
from threeloops.simulation.clock import VirtualClock

__all__ = ["simulate"]

_VOCABULARY = 256
_TYPICAL_PROMPT = 2048
"""The prompt from which the time of a token is estimated, if one number has to do."""


def simulate(arrivals: Sequence[Arrival], deployment: Deployment) -> DisaggregatedRun:
    """Run a deployment until every request has ended. The same arguments give the same run."""
    return _Simulation(deployment).run(requests_of(arrivals, _VOCABULARY))


class _Simulation:
    """The routers, the failures and the changes of roles; the owner of all steps."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.clock = VirtualClock()
        self.machines: list[Machine] = []
        for role in get_args(Role):
            for number in range(deployment.pool(role).machines):
                self.machines.append(Machine(f"{role}-{number}", role, deployment, self.clock, self))
        self.attempts: dict[Request, Attempt] = {}  # by both of their requests
        self.unrouted: deque[Attempt] = deque()  # no machine takes them now
        self.journeys: list[Journey] = []
        self.open = self.turn = 0
        self.moved_at = -math.inf
        self.token_seconds = deployment.cost(StepShape(((0, _TYPICAL_PROMPT, True),))) / _TYPICAL_PROMPT
        self.store = SharedStore(deployment, self.clock, self.token_seconds)
        self.delivery = Delivery(deployment, self.clock, self.machines)

    def run(self, requests: Sequence[Request]) -> DisaggregatedRun:
        self.open = len(requests)
        for request in sorted(requests, key=lambda request: request.arrival):
            self.clock.at(request.arrival, lambda request=request: self._arrive(request))  # type: ignore[misc]
        for failure in self.deployment.failures:
            self.clock.at(failure.at, lambda failure=failure: self._fail(failure))  # type: ignore[misc]
        if self.deployment.roles is not None:
            self.clock.at(self.deployment.roles.period, self._look)
        self.clock.run_until(lambda: not self.open)
        seconds = self.clock.now()
        for machine in self.machines:
            machine.count_busy_until(seconds)
        self._check_blocks()
        lives = tuple(machine.life for machine in self.machines)
        return DisaggregatedRun(seconds, tuple(self.journeys), lives, self.store.cache)

    def _check_blocks(self) -> None:
        """Let the last steps end and the last blocks be loaded. Raises AssertionError if a block is still held then."""
        self.clock.run_until(lambda: not any(machine.is_engaged for machine in self.machines))
        self.clock.sleep_until(max(machine.loads_until for machine in self.machines))
        for machine in self.machines:
            if machine.alive:
                machine.blocks.check_integrity([])

    # Requests, and the machine of their prompt.

    def _arrive(self, request: Request) -> None:
        journey = Journey(request)
        self.journeys.append(journey)
        self._begin(journey)

    def _begin(self, journey: Journey) -> None:
        """Begin a try, with the tokens that the client has as a part of the prompt."""
        request = journey.request
        prompt = request.tokens
        remaining = request.sampling.max_tokens - len(request.output)
        journey.reset()
        name = f"{request.id}.{journey.tries}"
        about = (request.arrival, request.priority, request.client)
        first = Request(name, prompt, Sampling(max_tokens=1), *about, keeps_blocks=remaining > 1)
        attempt = Attempt(journey, first, Request(name, prompt, Sampling(max_tokens=remaining), *about))
        self.attempts[attempt.first] = self.attempts[attempt.rest] = attempt
        self._route(attempt)

    def _able(self, role: Role) -> list[Machine]:
        return [machine for machine in self.machines if machine.role == role and machine.takes]

    def _is_local(self, attempt: Attempt) -> bool:
        """Whether its prompt is computed where it decodes: a short one, or any if no prefill machine will be there."""
        has_prefill = any(machine.future_role == "prefill" for machine in self.machines)
        return not has_prefill or len(attempt.first.prompt) < self.deployment.local_below

    def _route(self, attempt: Attempt) -> None:
        """Give it to a machine that computes its prompt, or keep it until one takes it."""
        is_local = self._is_local(attempt)
        able = self._able("decode" if is_local else "prefill")
        if not able:
            self.unrouted.append(attempt)
            self._require_decode_machine()
            return
        tokens = len(attempt.first.prompt)
        self.turn += 1
        if is_local:
            states = [self.delivery.state(machine, attempt) for machine in able]
            machine = able[self.deployment.decode_router(states, tokens, self.turn - 1)]
            attempt.decode = machine
            attempt.journey.decode = machine.life.name
            self._add(machine, attempt, attempt.rest)
            return
        keys = block_keys(attempt.first, self.deployment.block_size, tokens - 1)
        prefill_states = [self.store.state(machine, keys) for machine in able]
        place = self.deployment.prefill_router(prefill_states, tokens, self.turn - 1)
        machine = able[place]
        attempt.prefill = machine
        attempt.journey.prefill = machine.life.name
        attempt.journey.loaded_tokens = self.store.load(
            machine, attempt.first, keys, prefill_states[place], lambda: self._add(machine, attempt, attempt.first)
        )

    def _add(self, machine: Machine, attempt: Attempt, request: Request) -> None:
        """Let a machine's engine have a request, if its try is not over."""
        if request not in self.attempts:
            return
        try:
            if request.keeps_blocks:
                self.delivery.require_room(attempt)
            machine.add(request)
        except ValueError as error:
            self._end(attempt, f"refused: {error}")

    # Steps.

    def began(self, machine: Machine, batch: Batch, start: float, end: float) -> None:
        """Note what a step computes of prompts, and let the parts leave that are ready before the step ends."""
        for chunk in batch.chunks:
            attempt = self.attempts.get(chunk.request)
            if attempt is None:
                continue
            journey = attempt.journey
            if math.isnan(journey.begun):
                journey.begun = start
                journey.cached_tokens = chunk.start
            if chunk.request is attempt.first:
                self._log(attempt, chunk, start, end)

    def _log(self, attempt: Attempt, chunk: Chunk, start: float, end: float) -> None:
        if chunk.start > attempt.logged:  # a cached prefix
            self.delivery.log(attempt, ComputedChunk(start, start, chunk.start - attempt.logged))
        self.delivery.log(attempt, ComputedChunk(start, end, chunk.count))
        is_early = attempt.first.keeps_blocks and self.deployment.handover.way != "whole"
        if is_early and attempt.decode is None and attempt not in self.delivery.waiting:
            self._place(attempt)

    def ended(self, machine: Machine, batch: Batch) -> None:
        """Deliver the tokens of a step."""
        now = self.clock.now()
        for chunk in batch.chunks:
            attempt = self.attempts.get(chunk.request)
            if attempt is None or not chunk.samples:
                continue
            journey = attempt.journey
            if math.isnan(journey.computed):
                journey.computed = now
            journey.request.output.append(chunk.request.output[-1])
            journey.request.token_times.append(now)
            if len(journey.request.output) == journey.request.sampling.max_tokens:
                self._end(attempt)
            elif chunk.request is attempt.first:
                self._computed(attempt)
        self.delivery.place_waiting()

    def _computed(self, attempt: Attempt) -> None:
        """The prompt is computed, and its client has the first token."""
        attempt.is_computed = True
        self.store.keep(attempt.first)
        if self.deployment.handover.way == "whole":
            now = self.clock.now()
            attempt.chunks = [(0, ComputedChunk(now, now, len(attempt.first.prompt)))]
            self._place(attempt)
        else:
            self.delivery.receive_if_complete(attempt)

    def _place(self, attempt: Attempt) -> None:
        self.delivery.place(attempt)
        self._require_decode_machine()

    def _end(self, attempt: Attempt, error: str = "") -> None:
        """End a request, with all of its tokens or with an error."""
        request = attempt.journey.request
        request.finish = Finish.ERROR if error else Finish.LENGTH
        request.error = error
        self.open -= 1
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        """Let nothing more happen in this try, and free its blocks."""
        del self.attempts[attempt.first], self.attempts[attempt.rest]
        attempt.epoch += 1
        for queue in (self.unrouted, self.delivery.waiting):
            if attempt in queue:
                queue.remove(attempt)
        prefill = attempt.prefill
        decode = attempt.decode
        attempt.prefill = attempt.decode = None
        if prefill is not None:
            prefill.leave(attempt.first)
        if decode is not None:
            decode.leave(attempt.rest)

    # Failures.

    def _fail(self, failure: MachineFailure) -> None:
        able = [machine for machine in self.machines if machine.role == failure.pool and machine.alive]
        if not able:
            return
        machine = able[failure.victim % len(able)]
        machine.life.failures += 1
        machine.stop(returns=failure.restart < math.inf)
        if machine.returns:
            self.clock.at(self.clock.now() + failure.restart, lambda: self._start(machine))
        for attempt in list(dict.fromkeys(self.attempts.values())):
            if attempt.decode is machine and attempt.prefill is not None:
                self._place_again(attempt)
            elif machine in (attempt.prefill, attempt.decode):
                self._try_again(attempt, f"{machine.life.name} failed")
        self._route_waiting()
        self._require_decode_machine()

    def _place_again(self, attempt: Attempt) -> None:
        """Send a cache that the prefill machine still has to another decode machine."""
        self._take_back(attempt)
        self._place(attempt)

    def _take_back(self, attempt: Attempt) -> None:
        """Give up the blocks that a decode machine has reserved, and what was sent there."""
        old = attempt.rest
        decode = attempt.decode
        del self.attempts[old]
        attempt.rest = Request(old.id, old.prompt, old.sampling, old.arrival, old.priority, old.client)
        self.attempts[attempt.rest] = attempt
        attempt.epoch += 1
        attempt.travelling = 0
        attempt.is_reserved = False
        attempt.decode = None
        if decode is not None:
            decode.leave(old)

    def preempted(self, request: Request) -> None:
        """Forget what was sent of a prompt that has lost its blocks on the prefill machine, and give up its place.

        Otherwise it could wait for blocks of a prompt that waits for its place.
        """
        attempt = self.attempts.get(request)
        if attempt is None or request is not attempt.first or not attempt.logged:
            return
        attempt.chunks = []
        attempt.logged = 0
        if attempt in self.delivery.waiting:
            self.delivery.waiting.remove(attempt)
        self._take_back(attempt)

    def _try_again(self, attempt: Attempt, error: str) -> None:
        journey = attempt.journey
        if journey.tries >= self.deployment.tries:
            self._end(attempt, f"{error}, in try {journey.tries} of {self.deployment.tries}")
        else:
            self._forget(attempt)
            self._begin(journey)

    def _require_decode_machine(self) -> None:
        """See that there is, or will be, a machine for those who wait for one.

        If the only one is a prefill machine that drains, its prompts would wait for it, and it for them, so they begin
        again elsewhere. If there is none, those who wait end with an error.
        """
        if any(machine.role == "decode" and machine.returns for machine in self.machines):
            return
        coming = next((machine for machine in self.machines if machine.future_role == "decode"), None)
        if coming is None:
            stuck = [*self.unrouted, *self.delivery.waiting]
        else:
            stuck = [attempt for attempt in dict.fromkeys(self.attempts.values()) if attempt.prefill is coming]
        for attempt in stuck:
            if attempt.first in self.attempts:  # the end of one lets others begin, which may end here too
                if coming is None:
                    self._end(attempt, "no decode machine is left")
                else:
                    self._try_again(attempt, f"{coming.life.name} became a decode machine")

    def _start(self, machine: Machine) -> None:
        machine.start(machine.next_role or machine.role)
        self._route_waiting()
        self.delivery.place_waiting()

    def _route_waiting(self) -> None:
        waiting = list(self.unrouted)
        self.unrouted.clear()
        for attempt in waiting:
            self._route(attempt)

    # Changes of roles.

    def _look(self) -> None:
        """Let the rule for roles look, once per period."""
        roles = self.deployment.roles
        assert roles is not None
        now = self.clock.now()
        self.clock.at(now + roles.period, self._look)
        if any(machine.next_role is not None for machine in self.machines):
            return
        decision = roles.decide(self._prefill_load(), self.delivery.load(), now - self.moved_at)
        if decision is None:
            return
        able = self._able("decode" if decision == "to prefill" else "prefill")
        chosen = min(able, key=self._uses)
        chosen.next_role = "prefill" if decision == "to prefill" else "decode"
        self.moved_at = now
        self.left(chosen)
        self._require_decode_machine()

    def _uses(self, machine: Machine) -> int:
        """Return how many requests need a machine."""
        attempts = dict.fromkeys(self.attempts.values())
        return sum(machine in (attempt.prefill, attempt.decode) for attempt in attempts)

    def left(self, machine: Machine) -> None:
        """Use the room on a machine that a request has left. If nobody needs a machine that drains, change its role."""
        self.delivery.place_waiting()
        if machine.next_role is not None and not self._uses(machine):
            machine.tell(lambda: self._change_role(machine))

    def _change_role(self, machine: Machine) -> None:
        roles = self.deployment.roles
        if roles is not None and machine.next_role is not None and machine.alive:
            machine.blocks.check_integrity([])
            machine.stop(returns=True)
            self.clock.at(self.clock.now() + roles.seconds, lambda: self._start(machine))

    def _prefill_load(self) -> PoolLoad:
        able = self._able("prefill")
        waiting = sum(len(attempt.first.prompt) for attempt in self.unrouted)
        tokens = sum(machine.queued_tokens for machine in able) + waiting
        return PoolLoad(len(able), tokens * self.token_seconds / len(able) if able else math.inf)
