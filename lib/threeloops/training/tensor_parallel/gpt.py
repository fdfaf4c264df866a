"""The course's GPT cut over the ranks of a group: its attention by heads, its MLP by features, and its vocabulary.

Each block needs two all-reduces forward and two backward, one after attention and one after the MLP. With
`sequence_parallel` each of them becomes a reduce-scatter and an all-gather, which send the same bytes, and each rank
computes norms and the residual stream for its part of the tokens (Korthikanti et al. 2022, section 4.2).
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from threeloops.models.gpt import GPT, Attention
from threeloops.training.tensor_parallel.layers import RowParallelLinear, own_shard
from threeloops.training.tensor_parallel.layouts import COPIED, REPLICATED, Layout, sharded
from threeloops.training.tensor_parallel.plan import (
    Column,
    Enter,
    OnShards,
    Row,
    Style,
    Vocabulary,
    require_type,
)
from threeloops.training.tensor_parallel.vocabulary import vocabulary_parallel_cross_entropy

__all__ = ["Heads", "VocabularyLoss", "gpt_plan"]

_TOKENS = 1
"""The dimension of tokens in (batch, tokens, width)."""


@dataclass(frozen=True)
class Heads:
    """Attention in which each rank has a part of the query heads with the key and value heads that they use.

    The group's size must divide the number of key and value heads: a rank that shares one with another would need its
    gradient from there too. Use a smaller group for such a model.
    """

    outside: Layout = REPLICATED

    def __call__(self, module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        require_type(module, Attention)
        size = dist.get_world_size(group)
        for name in ("heads", "kv_heads"):
            if getattr(module, name) % size:
                raise ValueError(
                    f"{name} = {getattr(module, name)} cannot be cut over {size} ranks: heads are not replicated, so "
                    "choose a group whose size divides both heads and kv_heads"
                )
        heads = module.heads
        kv_heads = module.kv_heads
        head_dim = module.qkv.out_features // (heads + 2 * kv_heads)
        # The matrix, and its bias, hold all query heads, then all key heads, then all value heads: each is cut.
        for name, parameter in list(module.qkv.named_parameters()):
            parts = parameter.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
            mine = torch.cat([own_shard(part, 0, group).detach() for part in parts])
            setattr(module.qkv, name, nn.Parameter(mine, parameter.requires_grad))
        module.qkv.out_features //= size
        module.heads = heads // size
        module.kv_heads = kv_heads // size
        module.output = RowParallelLinear(module.output, group, output=self.outside)
        for norm in (module.query_norm, module.key_norm):
            if norm is not None:  # whole on every rank, and used there for the rank's own heads
                OnShards()(norm, group)
        return Enter(self.outside)(module, group)


@dataclass(frozen=True)
class VocabularyLoss:
    """A GPT's loss from logits of which each rank has a part of the vocabulary."""

    def __call__(self, module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        require_type(module, GPT)

        def loss(hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
            return vocabulary_parallel_cross_entropy(head(hidden), targets, group)

        module.loss = loss
        return module


def gpt_plan(*, sequence_parallel: bool = False) -> dict[str, Style]:
    """How to cut a GPT with `parallelize`. Without targets it then returns this rank's part of the logits.

    Every rank is given all tokens. With `sequence_parallel` the group's size must divide their number, and a rank's
    norms and residual stream hold its own; a dropout layer there would need another seed per rank.
    """
    outside = sharded(_TOKENS) if sequence_parallel else REPLICATED
    norms = ("blocks.*.attention_norm", "blocks.*.mlp_norm", "norm") if sequence_parallel else ()
    return {
        "": VocabularyLoss(),
        "embedding": Vocabulary(outside),
        "blocks.*.attention": Heads(outside),
        "blocks.*.mlp": Enter(outside),
        "blocks.*.mlp.gate": Column(COPIED),
        "blocks.*.mlp.up": Column(COPIED),
        "blocks.*.mlp.down": Row(output=outside),
        "head": Column(outside),
        **{name: OnShards() for name in norms},
    }
