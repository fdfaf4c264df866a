"""Parameters and their gradients as one flat tensor, cut into equal chunks, one per rank.

Elements are in reverse order of registration, the order in which gradients become ready and DDP fills its buckets.
Zeros at the end make the length a multiple of the ranks. They belong to no shard, so neither a norm nor an optimizer
sees them.

When do a reduce-scatter and DDP's all-reduce give the same bits? Floating-point sums depend on their order. A ring adds
chunk c in the order c + 1, c + 2, …, c (`cluster/processes/communicator.py`; the same in both collectives, as in NCCL),
so an element's order follows from its chunk. Both give the same bits if

- the same parameters are reduced together: a bucket or unit here is a bucket there, and
- both are cut alike: the length is a multiple of the ranks (DDP's uneven chunks differ by one element, ours are
  padded),

and always on two ranks, because a + b = b + a. Otherwise they agree to rounding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["FlatGradient", "FlatLayout", "load_shards", "shards_state"]


class FlatLayout:
    """Positions of parameters in a flat tensor, and the chunk of it that each of `ranks` has."""

    def __init__(self, parameters: Mapping[str, Tensor], ranks: int) -> None:
        self.shapes = {name: tuple(parameters[name].shape) for name in reversed(list(parameters))}
        self.ranks = ranks
        self.elements = sum(parameter.numel() for parameter in parameters.values())
        self.chunk_length = -(-self.elements // ranks)
        self.padded = self.chunk_length * ranks

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Each parameter's part of the flat tensor, in its shape."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = flat[: self.elements].split(sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def chunk(self, flat: Tensor, rank: int) -> Tensor:
        return flat[rank * self.chunk_length :][: self.chunk_length]

    def shard(self, flat: Tensor, rank: int) -> Tensor:
        """The chunk of a rank without the padding; it may have no elements."""
        return self.unpadded(self.chunk(flat, rank), rank)

    def unpadded(self, chunk: Tensor, rank: int) -> Tensor:
        return chunk[: max(0, self.elements - rank * self.chunk_length)]

    @torch.no_grad()
    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """A padded copy of the parameters' values."""
        first = next(iter(parameters.values()))
        flat = torch.zeros(self.padded, dtype=first.dtype, device=first.device)
        for name, view in self.views(flat).items():
            view.copy_(parameters[name])
        return flat


class FlatGradient:
    """The gradients of some parameters during backward. `put` collects them. After `reduce` and `finish`, this rank's
    chunk of their mean over all ranks is the gradient of `shard`.

    Args:
        replicas: the group of ranks that hold the same chunk, if there are several (hybrid sharding). Chunks are summed
            over it with an all-reduce after the reduce-scatter.
        keep: whether gradients stay in the flat tensor, with `shard.grad` as a part of it (ZeRO-1). Otherwise a
            parameter's gradient is freed when it is collected, and the flat tensor when it is reduced.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        layout: FlatLayout,
        shard: torch.nn.Parameter,
        group: dist.ProcessGroup | None,
        replicas: dist.ProcessGroup | None = None,
        keep: bool = False,
    ) -> None:
        self.parameters = parameters
        self.layout = layout
        self.shard = shard
        self.keep = keep
        self.missing: set[str] = set()
        self._group = group
        self._replicas = replicas
        self._rank = dist.get_rank(group)
        self._copies = 1 if replicas is None else dist.get_world_size(replicas)
        self._full: Tensor | None = None
        self._views: dict[str, Tensor] = {}
        self._work: dist.Work | None = None
        self._chunk: Tensor | None = None
        self._reduced = self._scattering = False

    @property
    def collecting(self) -> bool:
        """Whether memory for all gradients is held."""
        return self._full is not None

    def expect(self) -> None:
        """Begin a backward: the gradient of every parameter is to come."""
        self.missing = set(self.parameters)

    def put(self, name: str) -> None:
        parameter = self.parameters[name]
        gradient = parameter.grad
        assert gradient is not None
        if name not in self.missing:
            raise RuntimeError(
                f"{name!r} got a second gradient in one backward: expected one. Reentrant checkpoints do that for "
                "parameters used twice; use torch.utils.checkpoint(…, use_reentrant=False)"
            )
        if gradient.is_sparse:
            raise TypeError(
                f"the gradient of {name!r} is sparse: expected a dense one; use an embedding's sparse=False"
            )
        if self._full is None:
            self._full = gradient.new_zeros(self.layout.padded)
            self._views = self.layout.views(self._full)
        view = self._views[name]
        if gradient is not view:
            view.copy_(gradient.detach())
        elif self._reduced:
            raise RuntimeError(
                f"a gradient was added to that of {name!r}, which is averaged already: call zero_grad() before this "
                "backward, or accumulate the gradients of several backwards under no_sync()"
            )
        parameter.grad = view if self.keep else None
        self.missing.remove(name)

    def reduce(self) -> None:
        """Start the reduce-scatter. Dividing first keeps 16-bit sums in range, as DDP does."""
        full = self._full
        layout = self.layout
        assert full is not None
        full.div_(layout.ranks * self._copies)
        self._chunk = layout.chunk(full, self._rank) if self.keep else full.new_empty(layout.chunk_length)
        self._work = dist.reduce_scatter_tensor(self._chunk, full, group=self._group, async_op=True)
        self._scattering = True

    def all_reduce(self) -> None:
        """Wait for the reduce-scatter and start the sum over replicas, if there are any. Otherwise do nothing."""
        if self._replicas is not None and self._scattering:
            self._end_scatter()
            self._work = dist.all_reduce(self._chunk, group=self._replicas, async_op=True)

    def finish(self) -> None:
        """Wait for all that was started. Several backwards add up, in the dtype of the shard."""
        self.all_reduce()
        if self._scattering:
            self._end_scatter()
        elif self._work is not None:
            self._work.wait()
        assert self._chunk is not None
        gradient = self.layout.unpadded(self._chunk, self._rank).to(self.shard.dtype)
        if self.shard.grad is None or self.keep:
            self.shard.grad = gradient
        else:
            self.shard.grad += gradient
        self._work = None
        self._chunk = None
        self._reduced = True

    def _end_scatter(self) -> None:
        """Wait for the reduce-scatter, and free the collected gradients."""
        assert self._work is not None
        self._work.wait()
        self._work = None
        self._scattering = False
        if not self.keep:
            self._full = None
            self._views = {}

    def clear(self) -> None:
        """Forget all gradients."""
        self._full = None
        self._views = {}
        self._reduced = False
        self.shard.grad = None
        for parameter in self.parameters.values():
            parameter.grad = None


def shards_state(
    layouts: Sequence[FlatLayout], values: Sequence[Tensor], group: dist.ProcessGroup | None
) -> dict[str, Any]:
    """Return this rank's shards as plain data that can be saved. Joined over the ranks in order, the values of a shard
    are its parameters one after the other."""
    return {
        "rank": dist.get_rank(group),
        "ranks": dist.get_world_size(group),
        "shards": [
            {"parameters": dict(layout.shapes), "values": shard.detach().clone()}
            for layout, shard in zip(layouts, values, strict=True)
        ],
    }


@torch.no_grad()
def load_shards(
    state: Mapping[str, Any],
    layouts: Sequence[FlatLayout],
    values: Sequence[Tensor],
    group: dist.ProcessGroup | None,
) -> None:
    """Restore the result of `shards_state`. Raises ValueError, before anything is changed, if it belongs to another
    rank or to other parameters."""
    for name, expected in (("rank", dist.get_rank(group)), ("ranks", dist.get_world_size(group))):
        if state[name] != expected:
            raise ValueError(
                f"the state has {name} = {state[name]}, and this is {name} = {expected}: load what this rank saved, or "
                "join the shards of all ranks and cut them again"
            )
    shapes = [{name: tuple(shape) for name, shape in shard["parameters"].items()} for shard in state["shards"]]
    for number, (theirs, ours) in enumerate(zip(shapes, [layout.shapes for layout in layouts], strict=False)):
        if list(theirs.items()) != list(ours.items()):
            raise ValueError(
                f"shard {number} of the state has {theirs}, where this one has {ours}: build the same model, with the "
                "same buckets or units"
            )
    if len(shapes) != len(layouts):
        raise ValueError(f"the state has {len(shapes)} shards: expected {len(layouts)}, one per bucket or unit")
    for shard, into in zip(state["shards"], values, strict=True):
        into.copy_(shard["values"])
