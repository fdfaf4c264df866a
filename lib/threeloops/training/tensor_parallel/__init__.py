"""Tensor parallelism: the matrices of a layer cut over the ranks of a group, which share every token's work.

>>> from threeloops.training.mesh import Mesh
>>> groups = Mesh(dp=2, tp=4).connect("tp")
>>> torch.manual_seed(0)                         # the same values on all ranks: each keeps its part
>>> model = GPT(GPTConfig.tiny())
>>> parallelize(model, gpt_plan(sequence_parallel=True), groups["tp"])
>>> loss = model(tokens, targets)                # all ranks of the group with the same tokens
>>> loss.backward()                              # gradients of this rank's shards

A layer of your own is as short: `copy_to_ranks`, a matrix cut by columns, one cut by rows, `sum_over_ranks`.
`block_traffic` counts the bytes that a block sends.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.tensor_parallel.cost import Traffic, block_traffic, loss_traffic, step_traffic
    from threeloops.training.tensor_parallel.gpt import Heads, VocabularyLoss, gpt_plan
    from threeloops.training.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from threeloops.training.tensor_parallel.layouts import (
        COPIED,
        REPLICATED,
        TERMS,
        Layout,
        all_gather,
        change_layout,
        copy_to_ranks,
        gather,
        reduce_scatter,
        sharded,
        split,
        sum_over_ranks,
    )
    from threeloops.training.tensor_parallel.plan import (
        Column,
        Enter,
        OnShards,
        Plan,
        Row,
        Style,
        Vocabulary,
        parallelize,
    )
    from threeloops.training.tensor_parallel.vocabulary import (
        VocabularyParallelEmbedding,
        vocabulary_parallel_cross_entropy,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "COPIED", "REPLICATED", "TERMS", "Column", "ColumnParallelLinear", "Enter", "Heads", "Layout", "OnShards", "Plan",
    "Row", "RowParallelLinear", "Style", "Traffic", "Vocabulary", "VocabularyLoss", "VocabularyParallelEmbedding",
    "all_gather", "block_traffic", "change_layout", "copy_to_ranks", "gather", "gpt_plan", "loss_traffic",
    "parallelize", "reduce_scatter", "sharded", "split", "step_traffic", "sum_over_ranks",
    "vocabulary_parallel_cross_entropy",
]  # fmt: skip
