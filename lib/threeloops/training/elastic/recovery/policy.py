"""A fault policy in two hooks around the optimizer, as in torchft (torchft/optim.py): `zero_grad` starts to ask which
members are there, and `step` asks whether to commit. Either all ranks take a step, or none does.

A gradient that is not finite, or bits that differ between replicas, cost one batch instead of the run. If bits differ,
the rank is known, so a repeat offender can be replaced. After an all-reduce every replica has the value that is not
finite, so all are named. With shards, the report names the rank that holds the element, not the one that produced it.
To find that one, check before the all-reduce (`outlying`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.training.elastic.detection.silent import checksum
from threeloops.training.elastic.recovery.members import Members

__all__ = ["GuardedOptimizer", "Verdict", "vote"]


@dataclass(frozen=True)
class Verdict:
    """The members' findings before a step, the same on each. Ranks are counted within the whole program."""

    not_finite: tuple[int, ...] = ()
    """Ranks that hold a gradient that is not finite, whichever rank produced it."""
    odd: tuple[int, ...] = ()
    """Ranks whose gradients are not the bits of the majority."""

    @property
    def commit(self) -> bool:
        return not (self.not_finite or self.odd)


def vote(members: Members, gradients: Iterable[Tensor], replicated: bool) -> Verdict:
    """Decide whether to take a step with these gradients. Every member sends 16 bytes to all.

    Args:
        replicated: whether all members should hold the same bits, as after DDP's all-reduce, and unlike shards.
    """
    mine = list(gradients)
    finite = all(bool(torch.isfinite(gradient).all()) for gradient in mine)
    here = torch.tensor([finite, checksum(mine) if replicated else 0], dtype=torch.int64)
    everyone = here.new_empty(members.size * 2)
    dist.all_gather_into_tensor(everyone, here, group=members.group)
    all_finite, sums = everyone.view(-1, 2).T.tolist()
    agreed = max(sums, key=sums.count)
    if 2 * sums.count(agreed) <= members.size:
        agreed = None  # no majority: nobody can tell who is right
    return Verdict(
        tuple(rank for rank, is_finite in zip(members.ranks, all_finite, strict=True) if not is_finite),
        tuple(rank for rank, digest in zip(members.ranks, sums, strict=True) if digest != agreed),
    )


class GuardedOptimizer:
    """An optimizer whose steps all members take, or none.

    Use it in place of the optimizer, or of a `ZeroOptimizer`: `zero_grad()` at the beginning of a step, then forward
    and backward, then `step()`.

    Args:
        gradients: gives the gradients that `step` would use; those that are None are left out.
        replicated: see `vote`.
    """

    steps: int
    """Begun so far. Set it to the step of a checkpoint that is loaded into this optimizer."""
    skipped: list[tuple[int, Verdict]]
    """Steps that were not taken, and why."""

    def __init__(
        self,
        optimizer: Any,
        members: Members,
        gradients: Callable[[], Iterable[Tensor | None]],
        replicated: bool = True,
    ) -> None:
        self.optimizer = optimizer
        self.members = members
        self._gradients = gradients
        self._replicated = replicated
        self.steps = 0
        self.skipped = []
        self._quorum: dist.Work | None = None
        self._at: Tensor = torch.empty(0)

    def zero_grad(self) -> None:
        """Begin a step: ask, beside the forward, who is there and which step they are at."""
        self.optimizer.zero_grad()
        here = torch.tensor([self.steps])
        self._at = here.new_empty(self.members.size)
        self._quorum = dist.all_gather_into_tensor(self._at, here, group=self.members.group, async_op=True)

    def step(self) -> bool:
        """Take the step if all members are there, at the same step, and vote for it; says whether it was taken.

        Raises:
            RankLost: a member has died. Go on with `Members.without`.
            RuntimeError: members are at different steps, or `zero_grad` was not called.
        """
        if self._quorum is None:
            raise RuntimeError("step() without a quorum: expected zero_grad() at the beginning of the step")
        quorum = self._quorum
        self._quorum = None
        quorum.wait()
        steps = dict(zip(self.members.ranks, self._at.tolist(), strict=True))
        if len(set(steps.values())) > 1:
            at = ", ".join(f"rank {rank}: {step}" for rank, step in steps.items())
            raise RuntimeError(
                f"members are at different steps ({at}): expected the same number on all. Load the same checkpoint on "
                "all of them, and set `steps` to its step"
            )
        verdict = vote(
            self.members, (gradient for gradient in self._gradients() if gradient is not None), self._replicated
        )
        if verdict.commit:
            self.optimizer.step()
        else:
            self.skipped.append((self.steps, verdict))
        self.steps += 1
        return verdict.commit
