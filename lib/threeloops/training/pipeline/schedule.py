"""Pipeline schedules as data, and the schedules that do not divide backward passes: GPipe, 1F1B, interleaved 1F1B.

A schedule lists the actions of each rank, and says which rank has which stage. Schedules differ in nothing else, so one
checker, one simulator and one runtime serve them all, as in torch.distributed.pipelining (`_Action`) and in the
zero-bubble authors' fork of Megatron-LM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple

from threeloops.units import require_whole

__all__ = [
    "Action", "Kind", "Schedule", "bubble_share", "gpipe", "in_turns", "interleaved", "one_f_one_b",
]  # fmt: skip

Kind = Literal["F", "B", "I", "W"]
"""Forward; backward, whole (B) or split into the gradient of the stage's input (I) and those of its weights (W)."""

_NAMES = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


class Action(NamedTuple):
    kind: Kind
    stage: int
    microbatch: int

    @property
    def name(self) -> str:
        return _NAMES.get(self.kind, repr(self.kind))

    def __str__(self) -> str:
        return f"{self.name} of microbatch {self.microbatch} on stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """The actions of each rank in one step of training, or their beginning while a schedule is being written."""

    rows: list[list[Action]]
    """The actions of each rank, in order."""
    placement: tuple[int, ...]
    """The rank of each stage."""
    microbatches: int

    def __post_init__(self) -> None:
        require_whole(ranks=self.ranks, stages=self.stages, microbatches=self.microbatches)
        for stage, rank in enumerate(self.placement):
            if not 0 <= rank < self.ranks:
                raise ValueError(f"stage {stage} is on rank {rank}: expected one of the ranks 0 to {self.ranks - 1}")

    @property
    def ranks(self) -> int:
        return len(self.rows)

    @property
    def stages(self) -> int:
        return len(self.placement)

    def stages_of(self, rank: int) -> list[int]:
        return [stage for stage, owner in enumerate(self.placement) if owner == rank]

    def source(self, action: Action) -> int | None:
        """Return the stage whose result an action needs: a forward needs that of the stage before, a backward that of
        the stage after. None if it needs none."""
        return self._neighbour(action, forward=-1)

    def target(self, action: Action) -> int | None:
        """The stage that needs the result of an action."""
        return self._neighbour(action, forward=1)

    def _neighbour(self, action: Action, forward: int) -> int | None:
        if action.kind == "W":
            return None
        stage = action.stage + (forward if action.kind == "F" else -forward)
        return stage if 0 <= stage < self.stages else None

    def __str__(self) -> str:
        """A line per rank. If ranks have several stages, the stage comes first, as torch writes it: 1F0."""
        several = self.stages > self.ranks
        words = [[f"{a.stage if several else ''}{a.kind}{a.microbatch}" for a in row] for row in self.rows]
        return "\n".join(f"rank {rank}: {' '.join(row)}" for rank, row in enumerate(words))


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019, "GPipe"; there in reverse order, which takes as long)."""
    require_whole(ranks=ranks, microbatches=microbatches)
    forwards = [[Action("F", rank, i) for i in range(microbatches)] for rank in range(ranks)]
    backwards = [[Action("B", rank, i) for i in range(microbatches)] for rank in range(ranks)]
    rows = [first + then for first, then in zip(forwards, backwards, strict=True)]
    return Schedule(rows, tuple(range(ranks)), microbatches)


def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """First one forward for each later rank, then one forward and one backward in turns, then the remaining backwards
    (Narayanan et al. 2019, "PipeDream"; with a flush at the end Narayanan et al. 2021, figure 4).

    If transfers are free, its bubble is as long as GPipe's. But rank r keeps the activations of at most `ranks` − r
    microbatches instead of all.
    """
    require_whole(ranks=ranks, microbatches=microbatches)
    rows = []
    for rank in range(ranks):
        forwards = [Action("F", rank, i) for i in range(microbatches)]
        backwards = [Action("B", rank, i) for i in range(microbatches)]
        rows.append(in_turns(ranks - rank - 1, forwards, backwards))
    return Schedule(rows, tuple(range(ranks)), microbatches)


def interleaved(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B with `chunks` stages per rank, r, r + ranks, …: each is 1/chunks as long, and so is the bubble
    (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2).

    Microbatches go through in groups of `ranks`: a group passes the rank's first stage, then its second, and so on.

    Raises:
        ValueError: the microbatches do not form whole groups.
    """
    require_whole(ranks=ranks, microbatches=microbatches, chunks=chunks)
    if microbatches % ranks:
        raise ValueError(
            f"microbatches = {microbatches} on {ranks} ranks: interleaved 1F1B takes them in groups of {ranks}, so "
            f"choose a multiple of {ranks}, or one_f_one_b, which takes any number"
        )
    groups = [range(first, first + ranks) for first in range(0, microbatches, ranks)]
    order = [(chunk, i) for group in groups for chunk in range(chunks) for i in group]
    rows = []
    for rank in range(ranks):
        forwards = [Action("F", chunk * ranks + rank, i) for chunk, i in order]
        backwards = [Action("B", (chunks - 1 - chunk) * ranks + rank, i) for chunk, i in order]
        rows.append(in_turns(2 * (ranks - rank - 1) + (chunks - 1) * ranks, forwards, backwards))
    return Schedule(rows, tuple(range(ranks)) * chunks, microbatches)


def in_turns(warm_up: int, forwards: list[Action], *others: Sequence[Action | None]) -> list[Action]:
    """The first `warm_up` forwards, then one of each list in turns until all are done; None lets a turn pass."""
    turns = zip_longest(forwards[warm_up:], *others)
    return forwards[:warm_up] + [action for turn in turns for action in turn if action]


def bubble_share(ranks: int, microbatches: int, chunks: int = 1) -> float:
    """The share of a step in which a rank has nothing to do, with equal stages and free transfers: for GPipe and 1F1B
    (p − 1) / (m + p − 1), since each rank works m times and waits p − 1 times for a forward and a backward."""
    require_whole(ranks=ranks, microbatches=microbatches, chunks=chunks)
    return (ranks - 1) / (chunks * microbatches + ranks - 1)
