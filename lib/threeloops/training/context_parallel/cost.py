"""Bytes and time of ring attention, in closed form."""

from threeloops.training.collectives import Link
from threeloops.training.context_parallel.order import Order, visible_pairs

__all__ = ["ring_attention_bytes", "ring_attention_ends"]


def ring_attention_bytes(
    batch: int, tokens: int, kv_heads: int, head_dim: int, ranks: int, element_size: int = 4
) -> tuple[int, int]:
    """Bytes that each rank sends, forward and backward, for sequences of `tokens` in all.

    2 (n − 1)/n · batch · tokens · kv_heads · head_dim elements forward. Backward sends as many again, and as many
    gradients, which have 4 bytes or more.
    """
    elements = 2 * (ranks - 1) * batch * (tokens // ranks) * kv_heads * head_dim
    return elements * element_size, elements * (element_size + max(element_size, 4))


def ring_attention_ends(
    tokens: int, ranks: int, order: Order, seconds_per_pair: float, block_bytes: int, link: Link
) -> list[float]:
    """Return when each rank ends the forward pass. All begin at 0, and each has a link of its own to the next rank.

    A step ends when its attention is computed, the rank's own keys and values have left, the next rank has asked for
    them, and those of the rank before have arrived. `block_bytes` are those of one rank's k and v.
    """
    pairs = visible_pairs(tokens, ranks, order)
    now = [0.0] * ranks
    sending = block_bytes / link.bandwidth
    for step in range(ranks - 1):
        now = [
            max(
                now[rank] + pairs[rank][step] * seconds_per_pair,
                now[rank] + sending,
                now[rank - 1] + sending + link.latency,
                now[(rank + 1) % ranks],
            )
            for rank in range(ranks)
        ]
    return [start + pairs[rank][-1] * seconds_per_pair for rank, start in enumerate(now)]
