"""Context parallelism: each rank has a part of every sequence, and keys and values travel around the ring.

>>> context_parallelize(model, groups["cp"])
>>> positions = token_positions(length, dist.get_rank(groups["cp"]), ranks)      # zig-zag: equal work for all
>>> loss = model(tokens[:, positions], targets[:, positions])

`ring_attention(q, k, v, group)` takes the place of attention in any model.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.context_parallel.blocks import attend_block, block_gradients, merge
    from threeloops.training.context_parallel.cost import ring_attention_bytes, ring_attention_ends
    from threeloops.training.context_parallel.gpt import context_parallelize
    from threeloops.training.context_parallel.order import Order, chunks_of, token_positions, visible_pairs
    from threeloops.training.context_parallel.ring import BACKWARD_WORK, ring_attention
else:
    import_on_demand(__name__)

__all__ = [
    "BACKWARD_WORK", "Order", "attend_block", "block_gradients", "chunks_of", "context_parallelize", "merge",
    "ring_attention", "ring_attention_bytes", "ring_attention_ends", "token_positions", "visible_pairs",
]  # fmt: skip
