"""Live bytes over time, as data: who was alive when, on whose behalf, and what the peak was made of.

Both sides of a memory budget have this form: what the tracker measured (`tracker`) and what the accountant predicts
(`step`). So one can be laid over the other.
"""

from collections import Counter
from dataclasses import dataclass, field

from threeloops.units import readable_bytes

KINDS = ("parameter", "master", "gradient", "state", "buffer", "input", "activation", "temporary")
"""What a storage is for. An activation is made by a forward pass and freed by a backward pass; a temporary is neither
that nor any of the others."""


@dataclass
class Storage:
    """One piece of memory; tensors that are views of each other share one."""

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
    """Storage number `storage` grew (or shrank) by `bytes`; `live` are all live bytes afterwards."""

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
        return next((i + 1 for i, change in enumerate(self.changes) if change.live == peak), 0)

    def grow(self, storage: int, size: int) -> None:
        self.changes.append(Change(storage, size, self.live_bytes + size))

    def mark(self, what: str) -> None:
        self.marks.append((len(self.changes), what))

    def alive(self, after: int | None = None) -> list[tuple[Storage, int]]:
        """The storages alive after so many changes (at the peak), and their bytes then, the largest first."""
        held: Counter[int] = Counter()
        for change in self.changes[: self.peak_at if after is None else after]:
            held[change.storage] += change.bytes
        found = [(self.storages[number], size) for number, size in held.items() if size]
        return sorted(found, key=lambda pair: -pair[1])

    def by(self, attribute: str, after: int | None = None) -> dict[str, int]:
        """Bytes alive after so many changes (at the peak) by "kind", "module", "operator" or "where"."""
        total: Counter[str] = Counter()
        for storage, size in self.alive(after):
            total[getattr(storage, attribute)] += size
        if attribute == "kind":
            return {kind: total[kind] for kind in KINDS if total[kind]}
        return dict(total.most_common())

    def peak_of(self, *kinds: str) -> int:
        """The most bytes that storages of these kinds held together at any moment."""
        live = peak = 0
        for change in self.changes:
            if self.storages[change.storage].kind in kinds:
                live += change.bytes
                peak = max(peak, live)
        return peak

    def curve(self) -> dict[str, list[int]]:
        """Live bytes of each kind after every change: what a stacked plot is drawn from."""
        lines: dict[str, list[int]] = {kind: [] for kind in KINDS if any(s.kind == kind for s in self.storages)}
        level = dict.fromkeys(lines, 0)
        for change in self.changes:
            level[self.storages[change.storage].kind] += change.bytes
            for kind, line in lines.items():
                line.append(level[kind])
        return lines

    def report(self, largest: int = 8) -> str:
        """The peak in words: by kind, then the largest storages."""
        kinds = ", ".join(f"{kind} {readable_bytes(size)}" for kind, size in self.by("kind").items())
        lines = [f"peak of live storage {readable_bytes(self.peak_bytes)}: {kinds}"]
        return "\n".join(lines + [storage.describe() for storage, _ in self.alive()[:largest]])
