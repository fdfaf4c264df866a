"""The engine: a scheduler, something that executes its steps, and a clock. With a real clock and a model it serves;
with a virtual clock and a model of the step's cost it predicts.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from threeloops.product.batching.blocks import BlockManager
from threeloops.product.batching.policy import Policy
from threeloops.product.batching.scheduler import Scheduler
from threeloops.product.grammar import GrammarError
from threeloops.product.request import Batch, Finish, Request
from threeloops.simulation.clock import Clock, RealClock

__all__ = ["Engine", "Executor"]


class Executor(Protocol):
    """The part of an engine that computes a step."""

    def check(self, request: Request) -> None:
        """Raises ValueError for a request that can never be computed."""
        ...

    def execute(self, batch: Batch) -> Sequence[Sequence[int] | Exception]:
        """Return each chunk's new tokens (none if it does not sample), or the error that ends its request."""
        ...


class Engine:
    """Requests in, tokens out, a step at a time. Not for several threads: see `asynchronous.py`."""

    def __init__(
        self, executor: Executor, blocks: BlockManager, policy: Policy | None = None, clock: Clock | None = None
    ):
        self.executor, self.clock = executor, clock or RealClock()
        self.scheduler = Scheduler(blocks, policy or Policy())
        self.requests: dict[str, Request] = {}  # those that have not finished

    def add(self, request: Request) -> None:
        """Add a request. Raises ValueError if it was added before or can never run. The other requests are not
        affected."""
        self._check(request)
        self.scheduler.add(request)
        self.requests[request.id] = request

    def fork(self, id: str, request: Request) -> None:
        """Add a request that shares the keys and values of request `id`, as long as both have the same tokens.

        For several answers to one prompt: add the first, step until it has a token, then fork the others, with seeds of
        their own. A block that they share is copied when one of them writes into it. If nothing can be shared, because
        `id` has finished, has other tokens or was preempted, or because no seat is left, this is the same as `add`.
        """
        if (of := self.requests.get(id)) is None:
            return self.add(request)
        self._check(request)
        self.scheduler.fork(request, of)
        self.requests[request.id] = request
        return None

    def reserve(self, request: Request) -> bool:
        """Take a seat and blocks for a request whose prompt another engine computes. Returns False if there is no room
        now.

        Then write keys and values of its prompt, from token `request.cached` on, into the blocks of
        `request.block_table`, and call `receive`. Raises the same as `add`.
        """
        self._check(request)
        if not self.scheduler.reserve(request):
            return False
        self.requests[request.id] = request
        return True

    def receive(self, id: str, token: int) -> None:
        """Let a reserved request run: its blocks hold its prompt, and `token` is its first output. Raises ValueError if
        no such request is reserved."""
        request = self.requests.get(id)
        if request is None or request not in self.scheduler.receiving:
            raise ValueError(f"request {id!r} waits for no keys and values: call reserve first, and receive once")
        self.scheduler.receive(request, token, self.clock.now())
        if request.finish is not None:
            del self.requests[id]

    def release(self, request: Request) -> None:
        """Take back the blocks of a request that has ended and `keeps_blocks`. Nothing happens if it keeps none."""
        if request in self.scheduler.held:
            self.scheduler.release(request)

    def cancel(self, id: str) -> None:
        """End a request in any phase. A finished request is not changed."""
        if (request := self.requests.pop(id, None)) is not None:
            self.scheduler.end(request, Finish.CANCELLED)

    def step(self) -> Batch:
        """Compute one step and return it. It is empty if there is nothing to compute now.

        If the executor itself fails, the contents of the cache are unknown. Then every request ends with the error, the
        error is raised again, and the engine is as empty as a new one.
        """
        batch = self.scheduler.schedule(self.clock.now())
        if not batch.chunks:
            return batch
        try:
            results = self.executor.execute(batch)
            if len(results) != len(batch.chunks):
                raise RuntimeError(f"the executor gave {len(results)} results for {len(batch.chunks)} chunks")
        except BaseException as error:
            for request in list(self.requests.values()):
                self._fail(request, error)
            for request in list(self.scheduler.held):
                self.scheduler.release(request)
            self.scheduler.blocks.forget(range(self.scheduler.blocks.blocks))
            raise
        for chunk, result in zip(batch.chunks, results, strict=True):
            if isinstance(result, Exception) and chunk.request.finish is None:
                self._fail(chunk.request, result)
        tokens = [() if isinstance(result, Exception) else result for result in results]
        self.scheduler.update(batch, tokens, self.clock.now())
        for chunk in batch.chunks:
            if chunk.request.finish is not None and self.requests.get(chunk.request.id) is chunk.request:
                del self.requests[chunk.request.id]
        return batch

    def run(self, requests: Iterable[Request] = ()) -> None:
        """Compute all of `requests`, and all others in the engine, to their ends. Raises ValueError, and computes none
        of them, if one cannot be added."""
        added = []
        try:
            for request in requests:
                self.add(request)
                added.append(request)
        except ValueError:
            for request in added:
                self.cancel(request.id)
            raise
        self.scheduler.draining = True
        try:
            while self.requests:
                if not self.step().chunks:
                    raise RuntimeError(
                        f"{len(self.requests)} requests are left and no step can be made: "
                        f"{len(self.scheduler.paused)} of them are paused and {len(self.scheduler.receiving)} wait for "
                        "keys and values: resume, receive or cancel those; "
                        f"{len(self.scheduler.held)} that ended keep their blocks: release those"
                    )
        finally:
            self.scheduler.draining = False

    def _check(self, request: Request) -> None:
        if request.id in self.requests:
            raise ValueError(f"request {request.id!r} is here already: expected an id that no unfinished request has")
        if request.finish is not None or request.output or request.running:
            raise ValueError(
                f"request {request.id!r} was used before and has {len(request.output)} tokens of output: make a new "
                "Request of the same prompt"
            )
        self.executor.check(request)

    def _fail(self, request: Request, error: BaseException) -> None:
        request.error = str(error) or type(error).__name__
        request.is_grammar_at_fault = isinstance(error, GrammarError)
        self.scheduler.end(request, Finish.ERROR)
        del self.requests[request.id]
