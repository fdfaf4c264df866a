"""Replica groups that come and go while the others train, as in torchft.

Source: torchft/manager.py of torchft-nightly 2026.10.26 (PyPI).

A replica group has a whole copy of the model, cut over its ranks. Gradients are averaged between the groups, each rank
with those that hold the same part. If a rank dies, its group leaves: the step does not count, and the other groups take
the next one alone. No file is read, because every group has everything.

torchft asks a server (the lighthouse) before each step which groups send heartbeats. Here the survivors learn it from
`RankLost`, and a new group joins at a step that all of them know.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.training.cluster import RankLost

__all__ = ["ReplicaGroups"]


class ReplicaGroups:
    """The groups of `size` ranks each that train now, seen by one rank. Group g has the ranks g · size and following.

    Args:
        size: ranks of a group.
        present: the groups that train at first. The ranks of others call `join` before their first `average`.
    """

    present: tuple[int, ...]
    """The groups that train now."""

    def __init__(self, size: int, present: Sequence[int]) -> None:
        if size < 1 or dist.get_world_size() % size:
            raise ValueError(f"size = {size} with {dist.get_world_size()} ranks: expected groups of equal size")
        self.size = size
        self.number, self.place = divmod(dist.get_rank(), size)
        own = range(self.number * size, (self.number + 1) * size)
        self.group = dist.new_group(list(own), use_local_synchronization=True)
        self.present = tuple(present)
        self._peers: dist.ProcessGroup | None = None
        if self.number in self.present:
            self._regroup(self.present)

    def average(self, gradient: Tensor) -> bool:
        """Average this rank's part of the gradient over the groups, in place, and return whether the step counts.

        It does not if a group has died. That group has then left, and `gradient` has no meaning. All ranks of all
        remaining groups return the same. A group dies as a whole: if one of its ranks fails, its launcher ends the
        others.
        """
        lost = torch.zeros(dist.get_world_size() // self.size)
        try:
            dist.all_reduce(gradient, group=self._peers)
        except RankLost as error:
            for rank in error.ranks:
                lost[rank // self.size] = 1
        dist.all_reduce(lost, group=self.group)  # the others of this group may have reduced their parts
        left = tuple(group for group in self.present if not lost[group])
        if left != self.present:
            self._regroup(left)
            return False
        gradient /= len(self.present)
        return True

    def join(self, number: int, state: Tensor) -> None:
        """Let group `number` join. The present groups and the new one call this with the same number.

        `state` is this rank's part of all that training needs. The first of the present groups sends it, and the new
        group receives it in place. The others continue meanwhile.
        """
        giver = self.present[0] * self.size + self.place
        if self.number == number:
            dist.recv(state, giver)
        elif self.number == self.present[0]:
            dist.send(state, number * self.size + self.place)
        self._regroup(tuple(sorted((*self.present, number))))

    def _regroup(self, present: tuple[int, ...]) -> None:
        if self._peers is not None:
            dist.destroy_process_group(self._peers)  # torch counts groups into the name of the next, the same for all
        self.present = present
        peers = [group * self.size + self.place for group in present]
        self._peers = dist.new_group(peers, use_local_synchronization=True)
