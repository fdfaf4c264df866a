"""The interface of a collective algorithm to the world: messages to and from the other ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["Peers", "Subset", "TorchPeers"]


class Peers(Protocol):
    """The ranks of a group, seen from one of them.

    Tensors are contiguous, on both sides of the same dtype and number of elements, 0 included. Between two ranks
    messages arrive in the order in which they were sent. A tensor that is sent must not change, and one that is
    received into must not be used, before `wait` returns for the handle.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def send(self, tensor: torch.Tensor, to: int) -> Any:
        """Begin to send; returns a handle. `wait` returns when the last byte has left."""

    def receive(self, into: torch.Tensor, source: int) -> Any:
        """Begin to receive; returns a handle. `wait` returns when `into` is filled."""

    def exchange(self, tensor: torch.Tensor, to: int, into: torch.Tensor, source: int) -> Any:
        """Begin both, in one step; returns one handle for the two.

        Not the same as `send` then `receive`: NCCL runs them one after the other on a communicator, so two ranks that
        both send first would wait for each other forever. It needs them in one group (`ncclGroupStart`).
        """

    def wait(self, handle: Any) -> None: ...


class TorchPeers:
    """`Peers` by `torch.distributed` on any backend with point-to-point messages; `group` None is the default one."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        import torch.distributed as dist

        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group: call the collective on the ranks of the group alone")
        self._together = dist.get_backend(group) == "nccl"

    def send(self, tensor: torch.Tensor, to: int) -> list[dist.Work]:
        import torch.distributed as dist

        return [dist.isend(tensor, group=self._group, group_dst=to)]

    def receive(self, into: torch.Tensor, source: int) -> list[dist.Work]:
        import torch.distributed as dist

        return [dist.irecv(into, group=self._group, group_src=source)]

    def exchange(self, tensor: torch.Tensor, to: int, into: torch.Tensor, source: int) -> list[dist.Work]:
        import torch.distributed as dist

        if self._together:
            receive = dist.P2POp(dist.irecv, into, group=self._group, group_peer=source)
            return dist.batch_isend_irecv([receive, dist.P2POp(dist.isend, tensor, group=self._group, group_peer=to)])
        return [*self.receive(into, source), *self.send(tensor, to)]

    def exchange_all(self, outgoing: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
        """Send tensor r to each other rank r, and receive tensor r from it; returns when all have arrived.

        Sends leave one after the other, to rank + 1 first, so that no two ranks send to the same one at a time. None
        waits for what arrives.
        """
        import torch.distributed as dist

        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        if self._together and others:
            receives = [dist.P2POp(dist.irecv, into[other], group=self._group, group_peer=other) for other in others]
            sends = [dist.P2POp(dist.isend, outgoing[other], group=self._group, group_peer=other) for other in others]
            self.wait(dist.batch_isend_irecv([*receives, *sends]))
        else:
            receiving = [work for other in others for work in self.receive(into[other], other)]
            for other in others:
                self.wait(self.send(outgoing[other], other))
            self.wait(receiving)

    def wait(self, handle: list[dist.Work]) -> None:
        for work in handle:
            work.wait()


class Subset:
    """Some ranks of a group as a group of their own; `ranks` are theirs in the larger one, this rank's among them."""

    def __init__(self, peers: Peers, ranks: Sequence[int]) -> None:
        if peers.rank not in ranks:
            raise ValueError(f"rank {peers.rank} is not among the ranks of the subset, {list(ranks)}")
        self._peers = peers
        self._ranks = ranks
        self.rank = ranks.index(peers.rank)
        self.size = len(ranks)

    def send(self, tensor: torch.Tensor, to: int) -> Any:
        return self._peers.send(tensor, self._ranks[to])

    def receive(self, into: torch.Tensor, source: int) -> Any:
        return self._peers.receive(into, self._ranks[source])

    def exchange(self, tensor: torch.Tensor, to: int, into: torch.Tensor, source: int) -> Any:
        return self._peers.exchange(tensor, self._ranks[to], into, self._ranks[source])

    def wait(self, handle: Any) -> None:
        self._peers.wait(handle)
