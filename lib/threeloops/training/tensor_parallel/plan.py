"""Plans of tensor parallelism: a dict from module names to styles of cutting, which `parallelize` applies.

>>> plan = {"mlp.up": Column(), "mlp.down": Row(), "blocks.*.mlp.up": Column()}

A name is a path in the module, where `*` stands for any one step. The name of the module itself is "". A style is
called with a module and the group, and returns the module that replaces it, which may be the same one.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from threeloops.training.mesh import Partial, Replicate, redistribute
from threeloops.training.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from threeloops.training.tensor_parallel.layouts import COPIED, REPLICATED, Layout, change_layout, sharded
from threeloops.training.tensor_parallel.vocabulary import VocabularyParallelEmbedding

__all__ = ["Column", "Enter", "OnShards", "Plan", "Row", "Style", "Vocabulary", "parallelize", "require_type"]

Style = Callable[[Any, dist.ProcessGroup | None], nn.Module]
Plan = Mapping[str, Style]


@dataclass(frozen=True)
class Column:
    """A linear layer cut along its output features; see `ColumnParallelLinear`."""

    input: Layout = REPLICATED
    output: Layout = sharded(-1)

    def __call__(self, module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        require_type(module, nn.Linear)
        return ColumnParallelLinear(module, group, input=self.input, output=self.output)


@dataclass(frozen=True)
class Row:
    """A linear layer cut along its input features; see `RowParallelLinear`."""

    input: Layout = sharded(-1)
    output: Layout = REPLICATED

    def __call__(self, module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        require_type(module, nn.Linear)
        return RowParallelLinear(module, group, input=self.input, output=self.output)


@dataclass(frozen=True)
class Vocabulary:
    """An embedding cut along the vocabulary; see `VocabularyParallelEmbedding`."""

    output: Layout = REPLICATED

    def __call__(self, module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        require_type(module, nn.Embedding)
        return VocabularyParallelEmbedding(module, group, output=self.output)


@dataclass(frozen=True)
class Enter:
    """Copies the first argument of a module to the ranks once, for all layers inside it that are cut by columns.

    Each of them would otherwise reduce its own gradient of the same input: with SwiGLU's gate and up projections that
    is a third all-reduce per block.
    """

    input: Layout = REPLICATED

    def __call__(self, module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        module.register_forward_pre_hook(
            lambda _, arguments: (change_layout(arguments[0], self.input, COPIED, group), *arguments[1:])
        )
        return module


@dataclass(frozen=True)
class OnShards:
    """A module that stays whole on every rank and works on each rank's own tokens: a norm in sequence parallelism.

    Its gradients are then terms, and are summed over the ranks as soon as backward has found them, before a hook of
    data parallelism sees them. (Megatron sums those of all norms together after backward, which takes one latency in
    all.)
    """

    def __call__(self, module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: redistribute(gradient, Partial(), Replicate(), group))
        return module


def parallelize(module: nn.Module, plan: Plan, group: dist.ProcessGroup | None = None) -> set[str]:
    """Cut a module over the ranks of a group, in place. Every rank calls it with the same module, values included, and
    its parameters are then this rank's shards of those values. Make the optimizer after it.

    Returns the names of the parameters that are shards; the rest is replicated. Tied parameters stay tied.

    Raises:
        ValueError: a name in the plan matches nothing, or the same module as another one; a dimension cannot be cut
            into equal parts; layers expect a copied input that nobody copies; tied parameters would be cut
            differently; the module differs between ranks.
        TypeError: a style is for another kind of module.
    """
    styles = _matched(module, plan)
    _require_equal_on_all_ranks(module, group)
    _apply(_without_values(module), styles, group)  # a plan that does not fit fails here, and the module stays whole
    return _apply(module, styles, group)


def require_type(module: nn.Module, expected: type[nn.Module]) -> None:
    if not isinstance(module, expected):
        raise TypeError(f"{type(module).__name__}: this style cuts {expected.__name__}; give it another name or style")


def _matched(module: nn.Module, plan: Plan) -> dict[str, Style]:
    """The style of each module that has one."""
    styles: dict[str, tuple[str, Style]] = {}
    names = [name for name, _ in module.named_modules()]
    for pattern, style in plan.items():
        matches = [name for name in names if _matches(name, pattern)]
        if not matches:
            raise ValueError(f"the plan's {pattern!r} matches no module: there are {', '.join(names[1:]) or 'none'}")
        for name in matches:
            if name in styles:
                raise ValueError(
                    f"{name}: both {styles[name][0]!r} and {pattern!r} match; keep one of them in the plan"
                )
            if name == "" and isinstance(style, Column | Row | Vocabulary):
                raise ValueError(f"{style} would replace the module itself: call its layer's class, or wrap the module")
            styles[name] = pattern, style
    for name, (pattern, style) in styles.items():
        above = {name[:end] for end, letter in enumerate(name) if letter == "."} | {""}
        entered = any(isinstance(styles[parent][1], Enter) for parent in above & styles.keys())
        if isinstance(style, Column) and style.input == COPIED and not entered:
            raise ValueError(
                f"{name}: {pattern!r} expects a copied input, and no module around it copies: add Enter() for one that "
                "does, or use Column() as it is"
            )
    return {name: style for name, (_, style) in styles.items()}


def _matches(name: str, pattern: str) -> bool:
    steps = name.split(".")
    patterns = pattern.split(".")
    return len(steps) == len(patterns) and all(map(fnmatchcase, steps, patterns))


def _without_values(module: nn.Module) -> nn.Module:
    """A copy whose parameters have shapes and no memory."""
    groups = [
        value for layer in module.modules() for value in vars(layer).values() if isinstance(value, dist.ProcessGroup)
    ]
    memo: dict[int, Any] = {id(value): value for value in [*module.buffers(), *groups]}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    return deepcopy(module, memo)


def _apply(module: nn.Module, styles: dict[str, Style], group: dist.ProcessGroup | None) -> set[str]:
    """Names of the parameters that have become shards."""
    before = dict(module.named_parameters(remove_duplicate=False))
    for name, style in styles.items():
        old = module.get_submodule(name)
        try:
            new = style(old, group)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name or 'the module itself'}: {error}") from None
        if new is not old:
            _set(module, name, new)
    after = dict(module.named_parameters(remove_duplicate=False))
    first: dict[nn.Parameter, str] = {}
    for name, old in before.items():
        other = first.setdefault(old, name)
        if after[name].shape != after[other].shape:
            raise ValueError(
                f"{other} and {name} are tied, and the plan cuts them into {tuple(after[other].shape)} and "
                f"{tuple(after[name].shape)}: cut both along the same dimension"
            )
        if other != name:
            _set(module, name, after[other])  # what was one parameter is one again
    return {name for name, parameter in module.named_parameters() if parameter.shape != before[name].shape}


def _set(module: nn.Module, name: str, value: nn.Module | nn.Parameter) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, value)


def _require_equal_on_all_ranks(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    mine = {name: _signature(parameter) for name, parameter in module.named_parameters()}
    everyone: list[dict[str, Any]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for name in dict.fromkeys(name for theirs in everyone for name in theirs):
        if len({theirs.get(name) for theirs in everyone}) > 1:
            raise ValueError(
                f"{name} differs between ranks: build the module from the same seed on all of them, since each keeps "
                "its part of the same values"
            )


def _signature(parameter: Tensor) -> tuple[Any, ...]:
    """Equal for equal tensors, and all but surely different for others."""
    wide = parameter.detach().double()
    return tuple(parameter.shape), str(parameter.dtype), str(wide.sum().item()), str(wide.square().sum().item())
