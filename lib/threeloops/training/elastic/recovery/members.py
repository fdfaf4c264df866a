"""Members that train together. If some are lost, the others continue in the same processes, without a restart.

This needs the virtual cluster, where a collective whose rank has died raises `RankLost` in all other ranks. gloo and
NCCL raise errors of their own, which do not say who has died, or they wait until a timeout. There,
`train_through_losses` ends with that error, and a restart has to follow (`demo`).

The survivors form a new group, build their parts of the model for it, load the saved state, and continue. The shards
are cut anew, and gradients are averaged over fewer ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch.distributed as dist

from threeloops.training.cluster import RankLost

__all__ = ["Checkpoints", "Members", "Trainer", "train_through_losses"]


@dataclass(frozen=True)
class Members:
    """The ranks that train together, by their numbers in the whole program, and their group (None for all)."""

    ranks: tuple[int, ...] = field(default_factory=lambda: tuple(range(dist.get_world_size())))
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def place(self) -> int:
        """This rank's number among the members."""
        return self.ranks.index(dist.get_rank())

    def without(self, *lost: int) -> "Members":
        """Return those that are left, in a new group, once all of them are there. More may be lost meanwhile."""
        survivors = [rank for rank in self.ranks if rank not in lost]
        group = dist.new_group(survivors, use_local_synchronization=True)  # the lost ones cannot call it
        try:
            dist.barrier(group=group)  # also for those who are told later: nobody begins to wait for work before
        except RankLost as more:
            dist.destroy_process_group(group)  # torch counts groups into the name of the next, the same for all
            return self.without(*lost, *more.ranks)
        return Members(tuple(survivors), group)


class Trainer(Protocol):
    """Training on the ranks of one `Members`. It is built again whenever the members change."""

    def step(self, number: int) -> None:
        """Step `number`, from 0. Its global batch must not depend on how many members there are."""

    def state(self) -> Any:
        """This member's part of all that training needs to go on."""

    def load(self, parts: Sequence[Any]) -> None:
        """Load the values that `state` gave on each of any number of members, in order."""


class Checkpoints(Protocol):
    """The members' checkpoints. Each one knows its members, and puts their parts together."""

    def save(self, step: int, part: Any) -> None:
        """Called by all members, with the number of steps that are in it. Once it has returned on one of them the
        checkpoint is usable."""

    def load(self) -> tuple[int, Sequence[Any]] | None:
        """Return the step and the parts of the last usable checkpoint, the same on all members, whoever saved it, or
        None if there is none."""


def train_through_losses(
    build: Callable[[Members], Trainer], steps: int, checkpoints: Callable[[Members], Checkpoints], every: int
) -> tuple[Trainer, Members]:
    """Train to the end with the surviving ranks: save after each `every` steps, and after a loss continue from the last
    save.

    `build` gives every member the same model. Returns the trainer at the end, and its members.
    """
    if every < 1:
        raise ValueError(f"every = {every}: expected to save after 1 step or more")
    members = Members()
    while True:
        try:
            trainer, saved, done = build(members), checkpoints(members), 0
            if (loaded := saved.load()) is not None:
                done, parts = loaded
                trainer.load(parts)
            for number in range(done, steps):
                trainer.step(number)
                if (number + 1) % every == 0:
                    saved.save(number + 1, trainer.state())
            return trainer, members
        except RankLost as lost:
            members = members.without(*lost.ranks)
