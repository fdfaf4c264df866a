"""Checkpoints in the memory of peers: each member keeps its own part and that of the previous member.

If a member is lost, its state survives with the next one, and nothing is read from storage. A save costs one message of
the part's size per member, so it can happen every few steps. After Gemini (Wang et al. 2023, "GEMINI: Fast Failure
Recovery in Distributed Training with In-Memory Checkpoints", SOSP). The state does not survive the end of all
processes, or the simultaneous loss of two neighbours, so save to storage as well, less often. After a load there are
two copies of every part again, including those of lost members. So successive losses are survived wherever they happen.
If a whole node may be lost, order the members so that neighbours are on different nodes.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.training.elastic.recovery.members import Members

__all__ = ["PeerMemory"]

_KEPT = 2
"""The number of generations that are kept. If members are lost during a save, some of the others may already have the
new generation, and some may not."""


@dataclass
class _Generation:
    step: int
    ranks: tuple[int, ...]
    """The members that saved it."""
    parts: dict[int, Tensor]
    """The parts that are held here, by rank, as bytes."""


class PeerMemory:
    """One for the life of a process: `train_through_losses(…, checkpoints=PeerMemory().of, …)`."""

    def __init__(self) -> None:
        self._generations: list[_Generation] = []
        self._members: Members | None = None

    def of(self, members: Members) -> "PeerMemory":
        """The same memory, for these members from now on."""
        self._members = members
        return self

    def save(self, step: int, part: Any) -> None:
        members = self._of()
        mine = _to_bytes(part)
        me = members.ranks[members.place]
        before = members.ranks[members.place - 1]
        held = {me: mine}
        if members.size > 1:
            held[before] = self._exchange(mine, members)
        self._generations = [*self._generations[1 - _KEPT :], _Generation(step, members.ranks, held)]
        dist.barrier(group=members.group)  # whoever leaves knows that all copies are made

    def load(self) -> tuple[int, Sequence[Any]] | None:
        """See `Checkpoints`. Raises LookupError if two neighbours were lost, and with them a part."""
        members = self._of()
        everyone: list[Any] = [None] * members.size
        dist.all_gather_object(
            everyone,
            [(generation.step, generation.ranks, generation.parts) for generation in self._generations],
            members.group,
        )
        generations: dict[tuple[int, tuple[int, ...]], dict[int, Tensor]] = {}
        for step, ranks, parts in (generation for theirs in everyone for generation in theirs):
            generations.setdefault((step, ranks), {}).update(parts)
        if not generations:
            return None
        for (step, ranks), parts in sorted(generations.items(), reverse=True):
            if parts.keys() == set(ranks):
                self._keep(step, ranks, parts, members)
                return step, [_from_bytes(parts[rank]) for rank in ranks]
        (step, ranks), parts = max(generations.items())
        lost = ", ".join(str(rank) for rank in ranks if rank not in parts)
        raise LookupError(
            f"the part of rank {lost} of step {step} is lost: that rank and the next one alone held it. Load what was "
            "saved to storage"
        )

    def _keep(self, step: int, ranks: tuple[int, ...], parts: dict[int, Tensor], members: Members) -> None:
        """Drop newer generations, which are halves that nobody can load: the next save would keep one in place of this.
        Parts of this one are shared out as if these members had saved it; none that is held here is dropped, as another
        member may be lost before it has its share.
        """
        mine = {rank: parts[rank] for n, rank in enumerate(ranks) if (members.place - n) % members.size in (0, 1)}
        for generation in self._generations:
            if (generation.step, generation.ranks) == (step, ranks):
                mine |= generation.parts
        self._generations = [
            *(generation for generation in self._generations if generation.step < step),
            _Generation(step, ranks, mine),
        ]

    def _of(self) -> Members:
        if self._members is None:
            raise RuntimeError("whose memory? Call of(members) first")
        return self._members

    def _exchange(self, mine: Tensor, members: Members) -> Tensor:
        """Send a part to the next member, and receive that of the previous one."""
        following, before = (members.ranks[(members.place + step) % members.size] for step in (1, -1))
        size = torch.empty(1, dtype=torch.int64)
        for out, into in ((torch.tensor([len(mine)]), lambda: size), (mine, lambda: mine.new_empty(int(size)))):
            sent = dist.isend(out, following, group=members.group)
            try:
                dist.recv(got := into(), before, group=members.group)
            finally:
                sent.wait()  # before the next save may use its memory
        return got


def _to_bytes(part: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(part, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _from_bytes(data: Tensor) -> Any:
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
