"""Linear layers whose weight is cut over the ranks of a group (Shoeybi et al. 2019, "Megatron-LM", section 3).

If the first of two layers is cut by columns of Wᵀ and the second by rows, they need one all-reduce forward and one
backward, and the activation function between them needs none: y = f(x A) B = Σᵢ f(x Aᵢ) Bᵢ. The layout on either side
is an argument. So sequence parallelism (Korthikanti et al. 2022, section 4.2) is another layout of the same layers:
`sharded` along tokens instead of REPLICATED.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from threeloops.training.mesh import Replicate, Shard, redistribute
from threeloops.training.tensor_parallel.layouts import COPIED, REPLICATED, TERMS, Layout, change_layout, sharded

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "own_shard"]

_FEATURES = sharded(-1)


def own_shard(parameter: Tensor, dim: int, group: dist.ProcessGroup | None) -> nn.Parameter:
    """This rank's part of a parameter that all ranks hold whole. The whole one can be freed.

    Raises:
        ValueError: the dimension cannot be cut into as many equal parts as the group has ranks.
    """
    shard = redistribute(parameter.detach(), Replicate(), Shard(dim), group)
    return nn.Parameter(shard.clone(), requires_grad=parameter.requires_grad)


class ColumnParallelLinear(nn.Module):
    """x Wᵀ + b, of which each rank computes its own part of the output features: W and b are cut along those.

    Args:
        linear: the whole layer, the same on all ranks, of which this one keeps its part.
        input: COPIED where `copy_to_ranks` or `all_gather` was applied already, once for several layers.
        output: REPLICATED gathers the output features; by default each rank keeps its own.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: dist.ProcessGroup | None = None,
        *,
        input: Layout = REPLICATED,
        output: Layout = _FEATURES,
    ) -> None:
        super().__init__()
        self.weight = own_shard(linear.weight, 0, group)
        self.bias = None if linear.bias is None else own_shard(linear.bias, 0, group)
        self.group = group
        self.input = input
        self.output = output

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... own_outputs"]:
        x = change_layout(x, self.input, COPIED, self.group)
        return change_layout(functional.linear(x, self.weight, self.bias), _FEATURES, self.output, self.group)


class RowParallelLinear(nn.Module):
    """x Wᵀ + b, where each rank multiplies its own part of the input features. W is cut along those, and b is whole.

    Each product is a term of the sum over ranks. The bias is added to the sum, because it would otherwise count once
    per rank.

    Args:
        linear: the whole layer, the same on all ranks. This rank keeps its part.
        input: REPLICATED takes this rank's features out of all. By default the input is already this rank's features.
        output: `sharded` along tokens for sequence parallelism: a reduce-scatter instead of the all-reduce.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: dist.ProcessGroup | None = None,
        *,
        input: Layout = _FEATURES,
        output: Layout = REPLICATED,
    ) -> None:
        super().__init__()
        self.weight = own_shard(linear.weight, 1, group)
        self.bias = linear.bias
        self.group = group
        self.input = input
        self.output = output

    def forward(self, x: Float[Tensor, "... own_inputs"]) -> Float[Tensor, "... outputs"]:
        x = change_layout(x, self.input, _FEATURES, self.group)
        y = change_layout(functional.linear(x, self.weight), TERMS, self.output, self.group)
        if self.bias is None:
            return y
        # Where each rank adds the bias to its own tokens, it finds a term of the bias's gradient.
        used = REPLICATED if self.output == REPLICATED else COPIED
        return y + change_layout(self.bias, REPLICATED, used, self.group)
