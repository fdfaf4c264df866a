"""One machine in virtual time: the course's own engine, which makes steps as long as there is something to do, and its
end of the network.

An engine takes commands between its steps: new requests, reservations, arrived caches, cancellations. So a command that
comes during a step waits until the step ends. The owner is told when a step begins, because its layers may be sent
before it ends, and when it ends. It is also told when a request was preempted, and when one has left.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from threeloops.product.batching import Engine, SimulatedExecutor
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.disaggregated.description import Deployment, Role
from threeloops.product.disaggregated.record import MachineLife
from threeloops.product.request import Batch, Request
from threeloops.simulation.clock import VirtualClock
from threeloops.simulation.link import Server

__all__ = ["Machine", "StepOwner"]


class StepOwner(Protocol):
    def began(self, machine: "Machine", batch: Batch, start: float, end: float) -> None: ...

    def ended(self, machine: "Machine", batch: Batch) -> None: ...

    def preempted(self, request: Request) -> None: ...

    def left(self, machine: "Machine") -> None: ...


class Machine:
    """A machine of one role, with an empty engine. `alive` is False after a failure, until it restarts."""

    def __init__(self, name: str, role: Role, deployment: Deployment, clock: VirtualClock, owner: StepOwner):
        self.life = MachineLife(name)
        self.next_role: Role | None = None  # set while it drains
        self.returns = True  # whether it is there, or will be again
        self._deployment = deployment
        self._clock = clock
        self._owner = owner
        self.start(role)

    def start(self, role: Role) -> None:
        """Begin with an empty cache, in this role."""
        pool = self._deployment.pool(role)
        clock = VirtualClock()
        clock.sleep_until(self._clock.now())
        blocks = BlockManager(pool.blocks, self._deployment.block_size)
        self.role: Role = role
        self.engine = Engine(SimulatedExecutor(clock, self._deployment.cost), blocks, pool.policy, clock)
        self.port = Server()  # its end of the network
        self.loads_until = 0.0  # the end of the last load from the store
        self.promised: dict[Request, int] = {}  # blocks that were promised and are not yet reserved
        self.coming: dict[Request, int] = {}  # tokens of prompts that wait for blocks from the store
        self.alive = True
        self.next_role = None
        self.is_engaged = False  # in a step, or between two
        self._ends = math.inf
        self._step_tokens = 0
        self._commands: deque[Callable[[], object]] = deque()
        self.life.roles.append((self._clock.now(), role))

    def stop(self, returns: bool) -> None:
        """End at once, and lose everything."""
        self.count_busy_until(self._clock.now())
        self.alive = False
        self.returns = returns
        self.is_engaged = False
        self._ends = math.inf
        self._commands.clear()
        self.life.roles.append((self._clock.now(), ""))

    def count_busy_until(self, moment: float) -> None:
        """Leave out the rest of a step that ends after `moment`."""
        if self._ends < math.inf:
            self.life.busy -= max(0.0, self._ends - moment)

    @property
    def takes(self) -> bool:
        """Whether a router may choose it."""
        return self.alive and self.next_role is None

    @property
    def blocks(self) -> BlockManager:
        return self.engine.scheduler.blocks

    @property
    def queued_tokens(self) -> int:
        """The tokens of all prompts that are not computed yet, including those of the current step. How many of them
        the prefix cache will save is known only when a prompt begins."""
        waiting = sum(request.uncomputed for request in self.engine.requests.values())
        return self._step_tokens + waiting + sum(self.coming.values())

    @property
    def future_role(self) -> Role | None:
        """The role that it will have, or None if it never comes back."""
        return (self.next_role or self.role) if self.returns else None

    def add(self, request: Request) -> None:
        """Let a request wait for the next step. Raises the same as `Engine.add`."""
        self.coming.pop(request, None)
        self.engine.add(request)
        self._go_on()

    def tell(self, command: Callable[[], object]) -> None:
        """Run a command between two steps: at once, if no step is being made."""
        self._commands.append(command)
        self._go_on()

    def leave(self, request: Request) -> None:
        """Free what a request has here: its place, its promised blocks, and those that it holds."""
        if not self.alive:
            return
        self.promised.pop(request, None)
        self.coming.pop(request, None)
        self.tell(lambda: self._free(request))

    def _free(self, request: Request) -> None:
        self.engine.cancel(request.id)
        self.engine.release(request)
        self._owner.left(self)

    def _go_on(self) -> None:
        """Run all commands, and begin a step if there is something to compute."""
        if self.is_engaged:
            return
        self.is_engaged = True
        while self._commands:
            self._commands.popleft()()
        start = self._clock.now()
        self.engine.clock.sleep_until(start)
        batch = self.engine.step()
        for request in [request for request in self.engine.scheduler.waiting if request.preemptions]:
            self._owner.preempted(request)
        if not batch.chunks:
            self.is_engaged = False
            self._wait_for_door()
            return
        end = self.engine.clock.now()
        self.life.busy += end - start
        self.life.steps += 1
        self._ends = end
        self._step_tokens = batch.tokens
        engine = self.engine
        self._owner.began(self, batch, start, end)
        self._clock.at(end, lambda: self._end(engine, batch))

    def _wait_for_door(self) -> None:
        """Come back when admission opens by itself. If it is open already, only a command can let somebody join."""
        engine = self.engine
        opens = engine.scheduler.next_door()
        if self._clock.now() < opens < math.inf:
            self._clock.at(opens, lambda: self._go_on() if engine is self.engine and self.alive else None)

    def _end(self, engine: Engine, batch: Batch) -> None:
        if engine is not self.engine or not self.alive:
            return
        self._ends = math.inf
        self._step_tokens = 0
        self._owner.ended(self, batch)
        self.is_engaged = False
        self._go_on()
