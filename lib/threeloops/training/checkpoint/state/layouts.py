"""Layouts of a model's parameters on ranks, read from the model: which global tensors a local one holds parts of.

Every way of cutting keeps the names of the whole model. It cuts the optimizer's tensors of the same shape in the same
way as their parameter. So a layout is a function that takes any tensor cut like the parameter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from threeloops.models.gpt import Attention
from threeloops.training.checkpoint.pieces import Sharded, flat_range, sharded_along
from threeloops.training.data_parallel import DDP
from threeloops.training.expert_parallel import ExpertParallel, own_experts
from threeloops.training.sharded import FSDP, ZeroOptimizer
from threeloops.training.sharded.flat import FlatLayout
from threeloops.training.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabularyParallelEmbedding,
)

__all__ = ["Held", "held_by_model", "held_by_optimizer"]

_Pieces = dict[str, Tensor | Sharded]
"""Parts of global tensors, by name."""


@dataclass(frozen=True)
class Held:
    """A tensor that this rank holds, and the layout of any tensor of its shape."""

    tensor: Tensor
    place: Callable[[Tensor], _Pieces]


def held_by_model(model: nn.Module) -> list[Held]:
    """Return the parameters, and the buffers that `state_dict` has. A shared tensor is listed under all of its names,
    because tied weights, such as an embedding and a head, have different names on different stages of a pipeline."""
    if isinstance(model, FSDP):
        rank = dist.get_rank(model.group)
        names = _names_of_parameters(model.module)
        flats = [Held(flat.shard, partial(_in_flat, flat.layout, names, rank)) for flat in model.flats.values()]
        return flats + [held for held in _whole(model.module) if not isinstance(held.tensor, nn.Parameter)]
    if isinstance(model, DDP | nn.parallel.DistributedDataParallel):
        model = model.module
    if isinstance(model, AveragedModel):  # of a model that may be wrapped
        inner = [Held(held.tensor, partial(_below, "module.", held.place)) for held in held_by_model(model.module)]
        return [*inner, Held(model.n_averaged, partial(_placed, {"n_averaged": _of_first_rank}))]
    if wrapped := next((name for name, module in model.named_modules() if isinstance(module, FSDP)), None):
        raise ValueError(
            f"{wrapped!r} is an FSDP inside of a {type(model).__name__}, whose shards have no names there: give the "
            "FSDP itself, or wrap the whole module"
        )
    return _whole(model)


def held_by_optimizer(model: nn.Module, optimizer: Any) -> list[Held]:
    """Return the tensors that the optimizer trains, in the form in which its states refer to them."""
    if isinstance(optimizer, ZeroOptimizer):
        rank = dist.get_rank(optimizer.group)
        names = _names_of_parameters(model)
        return [Held(bucket.master, partial(_in_flat, bucket.layout, names, rank)) for bucket in optimizer.buckets]
    return held_by_model(model)


def _whole(model: nn.Module) -> list[Held]:
    cuts = dict(_cut_parameters(model))
    renamed = dict(_experts(model))
    names: dict[int, dict[str, Callable[[Tensor], Tensor | Sharded]]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor):
            prefix = next((prefix for prefix in renamed if name.startswith(prefix)), "")
            saved_name = renamed.get(prefix, "") + name[len(prefix) :]
            cut = cuts.get(name, _replica if isinstance(tensor, nn.Parameter) else _of_first_rank)
            names.setdefault(id(tensor), {})[saved_name] = cut
            tensors[id(tensor)] = tensor
    return [Held(tensor, partial(_placed, names[key])) for key, tensor in tensors.items()]


def _placed(names: dict[str, Callable[[Tensor], Tensor | Sharded]], tensor: Tensor) -> _Pieces:
    return {name: cut(tensor) for name, cut in names.items()}


def _below(prefix: str, place: Callable[[Tensor], _Pieces], tensor: Tensor) -> _Pieces:
    return {prefix + name: piece for name, piece in place(tensor).items()}


def _replica(tensor: Tensor) -> Tensor:
    return tensor


def _of_first_rank(tensor: Tensor) -> Sharded:
    """Return the layout of buffers, which may differ between ranks until the next forward copies the first rank's to
    all."""
    return Sharded(tuple(tensor.shape), tensor.dtype, (((0,) * tensor.dim(), tensor),), of_first_rank=True)


def _names_of_parameters(model: nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by the first."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {aliases[0]: aliases for aliases in names.values()}


def _in_flat(layout: FlatLayout, names: dict[str, list[str]], rank: int, chunk: Tensor) -> _Pieces:
    """The chunk of a rank, without padding, holds ranges of some of the parameters."""
    pieces: _Pieces = {}
    begin = rank * layout.chunk_length
    at = 0
    for name, shape in layout.shapes.items():
        first = max(at, begin)
        last = min(at + prod(shape), begin + len(chunk))
        if first < last:
            piece = flat_range(shape, first - at, chunk[first - begin : last - begin])
            pieces |= dict.fromkeys(names[name], piece)
        at += prod(shape)
    return pieces


def _cut_parameters(model: nn.Module) -> Iterator[tuple[str, Callable[[Tensor], Sharded]]]:
    """Yield the parameters of layers that tensor parallelism has cut."""
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        match module:
            case ColumnParallelLinear() | VocabularyParallelEmbedding():
                for parameter, _ in module.named_parameters(recurse=False):
                    yield prefix + parameter, partial(_along, 0, module.group)
            case RowParallelLinear():
                yield f"{prefix}weight", partial(_along, 1, module.group)
            case Attention() if isinstance(module.output, RowParallelLinear):
                for parameter, _ in module.qkv.named_parameters():
                    yield (
                        f"{prefix}qkv.{parameter}",
                        partial(_by_heads, module.heads, module.kv_heads, module.output.group),
                    )


def _along(dim: int, group: dist.ProcessGroup | None, tensor: Tensor) -> Sharded:
    return sharded_along(dim, tensor, dist.get_rank(group), dist.get_world_size(group))


def _by_heads(heads: int, kv_heads: int, group: dist.ProcessGroup | None, tensor: Tensor) -> Sharded:
    """This rank's query heads, then its key and then its value heads; in the whole matrix each kind lies together."""
    rank = dist.get_rank(group)
    ranks = dist.get_world_size(group)
    parts = []
    before = 0
    for part in tensor.split([len(tensor) // (heads + 2 * kv_heads) * n for n in (heads, kv_heads, kv_heads)]):
        parts.append(((before * ranks + rank * len(part), *[0] * (tensor.dim() - 1)), part))
        before += len(part)
    return Sharded((len(tensor) * ranks, *tensor.shape[1:]), tensor.dtype, tuple(parts))


def _experts(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Map a rank's local names of experts to their names in the whole model."""
    for name, module in model.named_modules():
        if isinstance(module, ExpertParallel):
            prefix = f"{name}.experts." if name else "experts."
            for here, number in enumerate(own_experts(module.router.experts, module.group)):
                yield f"{prefix}{here}.", f"{prefix}{number}."
