"""Live bytes over time: when each storage was alive, its purpose, and the storages that made up the peak.

The tracker measures such a timeline and the accountant predicts one, so that both can be compared.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from threeloops.units import readable_bytes

__all__ = ["Change", "KINDS", "MemoryBudgetExceeded", "Storage", "Timeline"]

KINDS = ("parameter", "master", "gradient", "state", "buffer", "input", "activation", "temporary")
"""The purposes of a storage. An activation is made by a forward pass and freed later. A temporary is none of the
others."""


@dataclass
class Storage:
    """A piece of memory, which tensors that are views of each other share."""

    bytes: int
    kind: str
    operator: str
    module: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    where: str = ""  # "file.py:12 function" of the innermost caller outside PyTorch

    def describe(self) -> str:
        form = f" {self.dtype} {list(self.shape)}" if self.dtype else ""
        place = f" in {self.module}" if self.module else ""
        line = f", {self.where}" if self.where else ""
        return f"{readable_bytes(self.bytes):>10}  {self.kind}{form}, made by {self.operator}{place}{line}"


@dataclass(frozen=True)
class Change:
    """Storage number `storage` grew (or shrank) by `bytes`; then `live` bytes were alive in all."""

    storage: int
    bytes: int
    live: int


@dataclass
class Timeline:
    """Every allocation and every end of a storage, in order."""

    storages: list[Storage] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)  # (number of changes before it, what begins)

    @property
    def live_bytes(self) -> int:
        return self.changes[-1].live if self.changes else 0

    @property
    def peak_bytes(self) -> int:
        return max((change.live for change in self.changes), default=0)

    @property
    def peak_at(self) -> int:
        """The number of changes after which the peak is first reached."""
        peak = self.peak_bytes
        return next((number for number, change in enumerate(self.changes, 1) if change.live == peak), 0)

    def add(self, storage: Storage) -> int:
        """Make a storage; returns its number."""
        self.storages.append(storage)
        self.grow(len(self.storages) - 1, storage.bytes)
        return len(self.storages) - 1

    def grow(self, storage: int, size: int) -> None:
        self.changes.append(Change(storage, size, self.live_bytes + size))

    def end(self, storage: int) -> None:
        self.grow(storage, -self.storages[storage].bytes)

    def mark(self, what: str) -> None:
        self.marks.append((len(self.changes), what))

    def alive(self, after: int | None = None) -> list[tuple[Storage, int]]:
        """Return the storages alive after this many changes (by default at the peak) and their bytes, the largest
        first."""
        held: Counter[int] = Counter()
        for change in self.changes[: self.peak_at if after is None else after]:
            held[change.storage] += change.bytes
        storages = [(self.storages[number], size) for number, size in held.items() if size]
        return sorted(storages, key=lambda pair: -pair[1])

    def by(self, attribute: str, after: int | None = None) -> dict[str, int]:
        """Return the bytes alive after this many changes (by default at the peak) by "kind", "module", "operator" or
        "where"."""
        total: Counter[str] = Counter()
        for storage, size in self.alive(after):
            total[getattr(storage, attribute)] += size
        if attribute == "kind":
            return {kind: total[kind] for kind in KINDS if total[kind]}
        return dict(total.most_common())

    def peak_of(self, *kinds: str) -> int:
        """Return the most bytes that storages of these kinds held together at any moment."""
        changes = (change.bytes for change in self.changes if self.storages[change.storage].kind in kinds)
        return max(accumulate(changes, initial=0))

    def curve(self) -> dict[str, list[int]]:
        """Return the live bytes of each kind after every change."""
        changes = [(self.storages[change.storage].kind, change.bytes) for change in self.changes]
        used = {storage.kind for storage in self.storages}
        return {
            kind: list(accumulate(size if of == kind else 0 for of, size in changes)) for kind in KINDS if kind in used
        }

    def report(self, largest: int = 8) -> str:
        """Return the peak by kind, and the largest storages that were alive then."""
        kinds = ", ".join(f"{kind} {readable_bytes(size)}" for kind, size in self.by("kind").items())
        lines = [f"peak of live storage: {readable_bytes(self.peak_bytes)}", f"  {kinds}"]
        return "\n".join(lines + [storage.describe() for storage, _ in self.alive()[:largest]])


class MemoryBudgetExceeded(MemoryError):
    """An operator made a tensor that no longer fits the budget. `timeline` ends with that tensor.

    The message names it, the bytes by kind, and the largest live tensors, each with the place that made it.
    """

    def __init__(self, budget_bytes: int, timeline: Timeline):
        self.budget_bytes = budget_bytes
        self.timeline = timeline
        now = len(timeline.changes)
        kinds = timeline.by("kind", now)
        width = max(map(len, kinds))
        lines = [
            f"{readable_bytes(timeline.live_bytes)} of live storage: expected at most {readable_bytes(budget_bytes)} "
            f"(budget_bytes = {budget_bytes:,}); the tensor that no longer fits:",
            f"  {timeline.storages[timeline.changes[-1].storage].describe()}",
            "by kind:",
            *(f"  {kind:<{width}}  {readable_bytes(size):>10}" for kind, size in kinds.items()),
            "largest live tensors:",
            *(f"  {storage.describe()}" for storage, _ in timeline.alive(now)[:_LARGEST]),
            f"next: {_ADVICE.get(max(kinds, key=lambda kind: kinds[kind]), _OTHER_ADVICE)}",
        ]
        super().__init__("\n".join(lines))


_LARGEST = 10
_ADVICE = {
    "activation": "activations weigh most: a smaller micro-batch with accumulation, or recompute them",
    "state": "the optimizer's state weighs most: keep it in host memory or on disk, or shard it",
    "master": "the master weights weigh most: keep them in host memory or on disk, or shard them",
    "gradient": "gradients weigh most: free them right after each update, or shard them",
    "parameter": "the parameters weigh most: fewer bits, a smaller model, or shard them",
}
_OTHER_ADVICE = "look at the largest tensors above: which of them need not be alive at this moment?"
