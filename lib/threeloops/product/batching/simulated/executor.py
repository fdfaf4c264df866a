"""An executor that lets virtual time pass."""

from collections.abc import Sequence

from threeloops.product.batching.simulated.steps import Cost, StepShape
from threeloops.product.request import Batch, Request
from threeloops.simulation.clock import VirtualClock

__all__ = ["SimulatedExecutor"]


class SimulatedExecutor:
    """Lets virtual time pass instead of computing. Every token is −1, so only `max_tokens` ends a request."""

    def __init__(self, clock: VirtualClock, cost: Cost):
        self.clock = clock
        self.cost = cost

    def check(self, request: Request) -> None:
        """Accept every request, because nothing is computed from its tokens."""

    def execute(self, batch: Batch) -> list[Sequence[int]]:
        self.clock.sleep_until(self.clock.now() + self.cost(StepShape.of(batch)))
        return [(-1,) if chunk.samples else () for chunk in batch.chunks]
