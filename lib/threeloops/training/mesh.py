"""Meshes of ranks, and layouts of tensors on them: the terms that all ways of cutting a model share.

>>> mesh = Mesh(dp=2, pp=2, tp=2)
>>> mesh.coordinates(5)
{'dp': 1, 'pp': 0, 'tp': 1}
>>> mesh.groups("tp")
[(0, 1), (2, 3), (4, 5), (6, 7)]

A program makes the groups of its axes with `groups = mesh.connect("dp", "tp")`, on every rank at the same place. How a
tensor lies on the ranks of a group is one of three placements, and each change of placement is one collective
(`redistribute`), as in GSPMD (Xu et al. 2021) and torch's DTensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor

__all__ = ["Mesh", "Partial", "Placement", "Replicate", "Shard", "redistribute"]


class Mesh:
    """Ranks 0 … size − 1 as a grid with named axes. The last axis varies fastest, so its neighbours are consecutive
    ranks, which are on one node if a node has enough devices. Put the axis that communicates most there.

    Args:
        axes: the length of each axis, outermost first. The usual names are pp, dp, cp, ep and tp.
    """

    def __init__(self, **axes: int) -> None:
        for name, length in axes.items():
            if length < 1:
                raise ValueError(f"{name} = {length}: expected a length of 1 or more")
        self.axes = axes

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={length}' for name, length in self.axes.items())})"

    @property
    def size(self) -> int:
        return prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """The place of a rank on each axis."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank = {rank}: {self} has ranks 0 to {self.size - 1}")
        coordinates = {}
        for name, length in reversed(self.axes.items()):
            rank, coordinates[name] = divmod(rank, length)
        return {name: coordinates[name] for name in self.axes}

    def rank(self, **coordinates: int) -> int:
        """The rank at this place. Axes that are not named are at 0."""
        self._check(coordinates)
        rank = 0
        for name, length in self.axes.items():
            place = coordinates.get(name, 0)
            if not 0 <= place < length:
                raise ValueError(f"{name} = {place}: {self} has places 0 to {length - 1} there")
            rank = rank * length + place
        return rank

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """The ranks that differ in these axes alone, in rising order; every rank is in one of the groups."""
        self._check(axes)
        lengths = [range(1 if name in axes else length) for name, length in self.axes.items()]
        firsts = [self.rank(**dict(zip(self.axes, place, strict=True))) for place in product(*lengths)]
        inside = [range(length if name in axes else 1) for name, length in self.axes.items()]
        offsets = [self.rank(**dict(zip(self.axes, place, strict=True))) for place in product(*inside)]
        return [tuple(first + offset for offset in offsets) for first in firsts]

    def connect(self, *axes: str) -> dict[str, dist.ProcessGroup]:
        """This rank's process group along each of these axes; by default along all. Every rank must call it, at the
        same place in its program, since torch makes a group on all ranks at once.

        Raises:
            ValueError: the mesh has another number of ranks than the program.
        """
        import torch.distributed as dist

        self._check(axes)
        if self.size != dist.get_world_size():
            raise ValueError(
                f"{self} has {self.size} ranks, and the program runs on {dist.get_world_size()}: the lengths of the "
                "axes must multiply to the world size"
            )
        groups = {}
        for axis in axes or tuple(self.axes):
            for ranks in self.groups(axis):
                group = dist.new_group(list(ranks))
                if dist.get_rank() in ranks:
                    groups[axis] = group
        return groups

    def _check(self, axes: Iterable[str]) -> None:
        for name in axes:
            if name not in self.axes:
                raise ValueError(f"there is no axis {name!r}: {self} has {', '.join(self.axes) or 'none'}")


@dataclass(frozen=True)
class Shard:
    """Rank i of a group of n has part i of n equal parts, cut along `dim`."""

    dim: int = 0


@dataclass(frozen=True)
class Replicate:
    """Every rank has all of it."""


@dataclass(frozen=True)
class Partial:
    """Every rank has a term; the tensor is their sum."""


Placement = Shard | Replicate | Partial


def redistribute(local: Tensor, before: Placement, after: Placement, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's part of a tensor that lies on the group's ranks as `before`, laid out as `after`. `local` stays as it
    is, and may be what is returned.

    | from      | to        | collective            | bytes sent per rank of n, of a tensor of S bytes |
    |-----------|-----------|-----------------------|--------------------------------------------------|
    | Partial   | Replicate | all-reduce            | 2 · (n − 1) / n · S                              |
    | Partial   | Shard     | reduce-scatter        | (n − 1) / n · S                                  |
    | Shard     | Replicate | all-gather            | (n − 1) / n · S                                  |
    | Shard     | Shard     | all-to-all            | (n − 1) / n² · S                                 |
    | Replicate | Shard     | none: takes its part  | 0                                                |
    | any       | Partial   | none: zeros around it | 0                                                |

    Raises:
        ValueError: a dimension cannot be cut into n equal parts.
    """
    import torch
    import torch.distributed as dist

    size = dist.get_world_size(group)
    rank = dist.get_rank(group)
    if before == after:
        return local
    match before, after:
        case Partial(), Replicate():
            whole = local.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(whole, group=group)
            return whole
        case Partial(), Shard(dim):
            parts = _parts(local, dim, size)
            out = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
            dist.reduce_scatter_tensor(out, torch.cat(parts), group=group)  # the same
            return out
        case Replicate(), Shard(dim):
            return _parts(local, dim, size)[rank].contiguous()
        case Shard(dim), Replicate():
            out = local.new_empty(size * local.shape[0], *local.shape[1:])  # gloo wants parts joined, not stacked
            dist.all_gather_into_tensor(out, local.contiguous(), group=group)
            return torch.cat(list(out.view(size, *local.shape)), dim)
        case Shard(dim), Shard(other) if dim % local.dim() == other % local.dim():
            return local
        case Shard(dim), Shard(other):
            parts = torch.stack(_parts(local, other, size))
            out = torch.empty_like(parts)
            dist.all_to_all_single(out, parts, group=group)
            return torch.cat(list(out), dim)
        case Replicate(), Partial():
            return local if rank == 0 else torch.zeros_like(local)
        case Shard(dim), Partial():
            zeros = torch.zeros_like(local)
            return torch.cat([local if peer == rank else zeros for peer in range(size)], dim)
    raise TypeError(f"from {before} to {after}: expected Shard(dim), Replicate() or Partial() for each")


def _parts(tensor: Tensor, dim: int, size: int) -> list[Tensor]:
    if not -tensor.dim() <= dim < tensor.dim():
        raise ValueError(f"Shard({dim}): the tensor has shape {tuple(tensor.shape)}")
    if tensor.shape[dim] % size:
        raise ValueError(
            f"dimension {dim} of shape {tuple(tensor.shape)} cannot be cut into {size} equal parts: choose a "
            f"length that {size} divides, or a smaller group"
        )
    return list(tensor.chunk(size, dim)) if tensor.shape[dim] else [tensor] * size
