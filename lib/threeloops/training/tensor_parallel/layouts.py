"""Changes of layout that autograd can differentiate: every backward is the conjugate change of the gradient.

A tensor on the ranks of a group has two placements, its own and that of its gradient:

| layout       | value     | gradient  |                                                                           |
|--------------|-----------|-----------|---------------------------------------------------------------------------|
| REPLICATED   | Replicate | Replicate | all ranks compute the same from it, so all find the whole gradient        |
| COPIED       | Replicate | Partial   | each rank uses its copy for its own part of the work and finds a term     |
| TERMS        | Partial   | Replicate | each rank has a term; the gradient of a sum is that of each of its terms  |
| sharded(dim) | Shard     | Shard     | each rank has a part, and finds the gradient of that part                 |

A change of layout moves the value forward, and moves the gradient backward. The six that tensor parallelism needs:

| function         | from → to              | forward        | backward       | name in the papers                   |
|------------------|------------------------|----------------|----------------|--------------------------------------|
| `copy_to_ranks`  | REPLICATED → COPIED    | nothing        | all-reduce     | f, Shoeybi et al. 2019, section 3    |
| `sum_over_ranks` | TERMS → REPLICATED     | all-reduce     | nothing        | g, the same                          |
| `all_gather`     | sharded → COPIED       | all-gather     | reduce-scatter | g, Korthikanti et al. 2022, sec. 4.2 |
| `reduce_scatter` | TERMS → sharded        | reduce-scatter | all-gather     | g with a bar, the same               |
| `split`          | REPLICATED → sharded   | takes its part | all-gather     |                                      |
| `gather`         | sharded → REPLICATED   | all-gather     | takes its part |                                      |
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.training.mesh import Partial, Placement, Replicate, Shard, redistribute

__all__ = [
    "COPIED",
    "REPLICATED",
    "TERMS",
    "Layout",
    "all_gather",
    "change_layout",
    "copy_to_ranks",
    "gather",
    "reduce_scatter",
    "sharded",
    "split",
    "sum_over_ranks",
]


@dataclass(frozen=True)
class Layout:
    """How a tensor and its gradient lie on the ranks of a group."""

    value: Placement
    gradient: Placement


REPLICATED = Layout(Replicate(), Replicate())
COPIED = Layout(Replicate(), Partial())
TERMS = Layout(Partial(), Replicate())


def sharded(dim: int) -> Layout:
    return Layout(Shard(dim), Shard(dim))


def change_layout(x: Tensor, before: Layout, after: Layout, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's part of the tensor laid out as `after`; its gradient comes back laid out as `before` says.

    Raises:
        ValueError: a dimension cannot be cut into equal parts.
    """
    return x if before == after else _ChangeLayout.apply(x, before, after, group)


class _ChangeLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Layout, after: Layout, group: dist.ProcessGroup | None) -> Tensor:
        ctx.before = before
        ctx.after = after
        ctx.group = group
        out = redistribute(x, before.value, after.value, group)
        return out.view_as(out)  # autograd wants a tensor of its own, also where nothing changes

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return redistribute(gradient, ctx.after.gradient, ctx.before.gradient, ctx.group), None, None, None


def copy_to_ranks(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Pass x on in forward and all-reduce its gradient in backward: for use before a layer whose output is cut."""
    return change_layout(x, REPLICATED, COPIED, group)


def sum_over_ranks(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """All-reduce forward, nothing backward: after a layer whose input dimension is cut."""
    return change_layout(x, TERMS, REPLICATED, group)


def all_gather(x: Tensor, dim: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """All-gather forward, reduce-scatter backward: `copy_to_ranks` where tokens are sharded before it."""
    return change_layout(x, sharded(dim), COPIED, group)


def reduce_scatter(x: Tensor, dim: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Reduce-scatter forward, all-gather backward: `sum_over_ranks` where tokens are sharded after it."""
    return change_layout(x, TERMS, sharded(dim), group)


def split(x: Tensor, dim: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's part forward, all-gather backward."""
    return change_layout(x, REPLICATED, sharded(dim), group)


def gather(x: Tensor, dim: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """All-gather forward, this rank's part backward: for an output that all ranks use alike."""
    return change_layout(x, sharded(dim), REPLICATED, group)
