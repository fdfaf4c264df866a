"""The store that all prefill machines share: where blocks are loaded from, and when that is worth it."""

from collections.abc import Callable, Sequence

from threeloops.product.batching.prefix_cache import block_keys
from threeloops.product.disaggregated.description import Deployment
from threeloops.product.disaggregated.machine import Machine
from threeloops.product.disaggregated.policies import PrefillState, TieredCache
from threeloops.product.request import Request
from threeloops.simulation.clock import VirtualClock

__all__ = ["SharedStore"]


class SharedStore:
    """Tiers below the machines' own caches, with a copy of every full block of a prompt. There may be none.

    A machine loads for one prompt after another. Loaded blocks are in its prefix cache, where its engine finds them. If
    the prompt has to wait, they can be lost again.
    """

    def __init__(self, deployment: Deployment, clock: VirtualClock, token_seconds: float):
        block_bytes = deployment.block_size * deployment.handover.shape.token_bytes
        self.cache = TieredCache(deployment.store, block_bytes, deployment.eviction) if deployment.store else None
        self._size = deployment.block_size
        self._is_used = deployment.prefill.policy.prefix_cache
        self._clock = clock
        self._token_seconds = token_seconds

    def state(self, machine: Machine, keys: Sequence[bytes]) -> PrefillState:
        """Return what a router sees of a machine, for a prompt whose full blocks have these keys."""
        cached = len(machine.blocks.find(list(keys)))
        tokens = cached * self._size
        if self.cache is None or not self._is_used:
            return PrefillState(machine.life.name, machine.queued_tokens, tokens)
        hits = self.cache.find(keys[cached:])
        seconds = max(0.0, machine.loads_until - self._clock.now()) + hits.seconds
        return PrefillState(machine.life.name, machine.queued_tokens, tokens, hits.blocks * self._size, seconds)

    def load(
        self, machine: Machine, request: Request, keys: Sequence[bytes], state: PrefillState, then: Callable[[], None]
    ) -> int:
        """Load blocks of a prompt, and run `then` when they are there. Returns the number of tokens that are loaded.

        Without blocks to load, without room for them, or if computing them is faster, `then` runs at once.
        """
        cached = machine.blocks.find(list(keys))
        needed = state.loadable_tokens // self._size
        is_faster = state.load_seconds < state.loadable_tokens * self._token_seconds
        if not needed or not is_faster or machine.blocks.free < needed + len(cached):
            then()
            return 0
        ready = self._clock.now() + state.load_seconds  # which includes the wait for those before it
        machine.loads_until = ready
        engine = machine.engine
        table = machine.blocks.fork(cached)
        machine.blocks.grow(table, (len(cached) + needed) * self._size)
        machine.coming[request] = len(request.prompt) - state.loadable_tokens

        def arrive() -> None:
            if machine.engine is engine and machine.alive:
                for block, key in zip(table, keys, strict=False):
                    machine.blocks.name(block, key)
                machine.blocks.release(table)
                then()

        self._clock.at(ready, arrive)
        return state.loadable_tokens

    def keep(self, request: Request) -> None:
        """Keep the full blocks of a prompt that was computed."""
        if self.cache is not None:
            keys = block_keys(request, self._size, len(request.prompt))
            self.cache.use(keys, self._size * self._token_seconds)
