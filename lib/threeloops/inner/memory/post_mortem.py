"""What was in memory when it ran out."""

from threeloops.inner.memory.timeline import Timeline
from threeloops.units import readable_bytes

LARGEST = 10


class MemoryBudgetExceeded(MemoryError):
    """An operator made a tensor that no longer fits the budget. `timeline` ends with that tensor.

    The message names it, the bytes by kind, and the largest live tensors with where each was made.
    """

    def __init__(self, budget_bytes: int, timeline: Timeline):
        self.budget_bytes, self.timeline = budget_bytes, timeline
        super().__init__(post_mortem(budget_bytes, timeline))


def post_mortem(budget_bytes: int, timeline: Timeline, largest: int = LARGEST) -> str:
    """The report of a timeline at its end, where it exceeds the budget."""
    now = len(timeline.changes)
    last = timeline.storages[timeline.changes[-1].storage]
    kinds = timeline.by("kind", now)
    width = max(map(len, kinds))
    lines = [
        f"{readable_bytes(timeline.live_bytes)} of live storage: expected at most {readable_bytes(budget_bytes)} "
        f"(budget_bytes = {budget_bytes:,}); the tensor that no longer fits:",
        f"  {last.describe()}",
        "by kind:",
        *(f"  {kind:<{width}}  {readable_bytes(size):>10}" for kind, size in kinds.items()),
        "largest live tensors:",
        *(f"  {storage.describe()}" for storage, _ in timeline.alive(now)[:largest]),
        f"next: {_advice(max(kinds, key=lambda kind: kinds[kind]))}",
    ]
    return "\n".join(lines)


def _advice(kind: str) -> str:
    return {
        "activation": "activations weigh most: a smaller micro-batch with accumulation, or recompute them",
        "state": "the optimiser's state weighs most: keep it in host memory or on disk, or shard it",
        "master": "the master weights weigh most: keep them in host memory or on disk, or shard them",
        "gradient": "gradients weigh most: free them right after each update, or shard them",
        "parameter": "the parameters weigh most: fewer bits, a smaller model, or shard them",
    }.get(kind, "look at the largest tensors above: which of them need not be alive at this moment?")
