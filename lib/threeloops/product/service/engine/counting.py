"""Count an engine's work from outside: an executor that passes each step on and looks at it."""

from collections.abc import Sequence

from threeloops.product.batching.engine import Engine, Executor
from threeloops.product.request import Batch, Request
from threeloops.product.service.engine.messages import EngineStats

__all__ = ["CountingExecutor"]


class CountingExecutor:
    """Count steps, preemptions, and the tokens that admitted requests asked of the prefix cache and found there.

    A chunk that begins where the cached prefix ends is the first since its request was admitted. A preemption is
    counted when its request is admitted again.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.steps = self.preemptions = self.asked = self.hit = 0

    def check(self, request: Request) -> None:
        self.executor.check(request)

    def execute(self, batch: Batch) -> Sequence[Sequence[int] | Exception]:
        self.steps += 1
        for chunk in batch.chunks:
            if chunk.start == chunk.request.cached:
                self.asked += chunk.request.length
                self.hit += chunk.request.cached
                self.preemptions += chunk.request.preemptions > 0
        return self.executor.execute(batch)

    def stats(self, engine: Engine, streams: int) -> EngineStats:
        """Return the statistics of the engine that uses this executor, between two steps."""
        scheduler = engine.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            paused=len(scheduler.paused),
            streams=streams,
            blocks_free=scheduler.blocks.free,
            blocks_total=scheduler.blocks.blocks,
            steps=self.steps,
            preemptions=self.preemptions,
            prefix_tokens_asked=self.asked,
            prefix_tokens_hit=self.hit,
        )
